// One rank's end of a group of ranks on one host.
#ifndef PELTON_COMM_TRANSPORT_SHM_SHM_COMMUNICATOR_H_
#define PELTON_COMM_TRANSPORT_SHM_SHM_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/transport/operation_check.h"
#include "comm/transport/shm/collective.h"
#include "comm/transport/shm/context.h"
#include "comm/transport/shm/neighbors.h"
#include "comm/transport/shm/point_to_point.h"
#include "core/base/sharing.h"
#include "core/pipeline/operation.h"

namespace pelton::shm {

// Threads and contract: as Communicator. Owns: its part of the control block, and the operations in
// flight.
class ShmCommunicator final : public Communicator, public NativeNeighbors {
 public:
  using OnClose = std::function<void(ShmCommunicator*)>;

  ShmCommunicator(CommunicatorId id, Generation generation, Context context, OnClose on_close);
  ~ShmCommunicator() override;

  Rank rank() const override { return Rank(context_.rank); }
  WorldSize world_size() const override { return WorldSize(context_.world_size()); }
  CommunicatorId id() const override { return id_; }
  int spins() const override;
  uint64_t piece_bytes() const override;
  absl::Status Register(const Region& region) override;
  void Deregister(RegionId region) override;

  absl::StatusOr<std::optional<Rank>> FindSender(int32_t tag) override;
  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  absl::StatusOr<Completion> LaunchInPieces(const Operation& operation, Pieces& pieces) override;
  bool Progress() override;
  State Query(Completion completion) override;
  void Park(absl::Time until) override;
  void Wake() override;
  void Abort(const absl::Status& reason) override;
  std::vector<Rank> Missing() const override;

  // A rank of the world that is gone.
  struct Loss {
    int world_rank = 0;
    bool has_left = false;  // in good order: its part in everything that it launched is done
    absl::Status reason;
  };
  // If it is a member: this communicator is gone, too; after a leave only when an operation needs
  // that member, so that the others end what they do among themselves. Threads: any.
  void Lose(const Loss& loss);

 private:
  struct Queued {
    Operation operation;
    uint64_t ticket;
    std::byte* source = nullptr;
    std::byte* target = nullptr;
    Pieces* pieces = nullptr;  // in the place of both
  };

  // What a new operation fails with; nothing while they may still be taken in.
  absl::Status CheckOpen() const;
  absl::StatusOr<Completion> LaunchToNeighbors(const Operation& operation, Stream& stream);
  absl::Status CheckTag(const Operation& operation) const;
  absl::Status Prepare(Operation* operation, Queued* queued) const;
  // Takes note of the end of a message, of the caller's or of a program.
  void EndMessage(uint64_t ticket, const absl::Status& status);
  bool AdvanceCollectives();
  bool AdvancePointToPoint();
  bool AdvanceNeighbors();
  // Ends the communicator for what has failed on this rank; false if it has ended already.
  bool Break(const absl::Status& reason);
  // The same where `operation` did not start for want of memory for a copy: it ends with the
  // communicator, because its peer would wait for it in vain.
  void BreakIfFailed(const absl::Status& started, const Operation& operation);
  bool ProgressAborted();
  // Makes sure that no peer reads or writes this rank's memory; false while that is not so.
  bool TakeMemoryBack();
  bool IsIdle() const { return completions_.in_flight() == 0; }
  // Ends the communicator if what is in flight waits for one of the first `have_left` members that
  // have left; true if so.
  bool EndIfLeft(size_t have_left);
  bool Needs(int member) const;
  // Costs one load while nobody has.
  size_t HowManyHaveLeft() const;
  void FailAll(const absl::Status& reason);

  const CommunicatorId id_;
  const Generation generation_;
  const Context context_;
  const OnClose on_close_;
  AbortSwitch abort_;
  Collective collective_;
  PointToPoint point_to_point_;
  Neighbors neighbors_;
  CompletionTable completions_;
  std::deque<Queued> queue_;  // collectives that wait for their turn; the first one runs
  std::atomic<bool> wake_ = false;
  std::atomic<bool> has_anybody_left_ = false;
  SharedList<RegionId> registered_;
  SharedList<std::pair<int, absl::Status>> left_;  // members, and why
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_SHM_COMMUNICATOR_H_
