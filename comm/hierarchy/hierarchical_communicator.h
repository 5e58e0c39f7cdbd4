// The communicator of a group whose ranks are on several hosts, some of which have several ranks.
#ifndef PELTON_COMM_HIERARCHY_HIERARCHICAL_COMMUNICATOR_H_
#define PELTON_COMM_HIERARCHY_HIERARCHICAL_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "comm/collectives/selection.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/hierarchy/layout.h"
#include "comm/hierarchy/roll_call.h"
#include "comm/hierarchy/staged_run.h"
#include "comm/hierarchy/stages.h"
#include "comm/hierarchy/wires.h"
#include "comm/transport/operation_check.h"
#include "core/base/clock.h"
#include "core/base/sharing.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"

namespace pelton::hierarchy {

// A mean of float16 tensors over hosts of unequal size, by way of float32.
// Hosts of one size pass on means, and the mean of those is the result. Hosts of unequal size pass
// on sums, and a host's sum of finite values may be more than float16 holds although the mean is
// not. So the tensor is widened to float32, which travels, and the result rounded once.
// Threads: those of the wires' Launch. Owns: the widened tensors; the wires outlive it.
class WideMean {
 public:
  explicit WideMean(Wires& wires) : wires_(wires) {}
  ~WideMean();
  WideMean(const WideMean&) = delete;
  WideMean& operator=(const WideMean&) = delete;

  // Whether `operation` needs it on these hosts: all ranks answer alike.
  static bool IsFor(const Operation& operation, const Layout& layout);

  // Begins for `operation` of `rank`. Errors: ResourceExhausted: no memory for float32.
  absl::Status Start(const Operation& operation, const OperationMemory& memory, Rank rank,
                     WorldSize world_size);
  bool is_active() const { return is_active_; }
  // Each does a bounded step; true once the whole is done. The result is there after Narrow.
  bool Widen();
  bool Narrow();
  // The same in float32.
  const Operation& operation() const { return operation_; }
  OperationMemory memory() const;

 private:
  Wires& wires_;
  std::unique_ptr<Region> region_;
  Operation operation_;
  OperationMemory narrow_;
  uint64_t source_count_ = 0;  // elements
  uint64_t target_count_ = 0;
  uint64_t target_begin_ = 0;  // in the region, elements
  uint64_t done_count_ = 0;
  bool is_active_ = false;
};

// What a rank communicates by. Users' messages and the collectives' have communicators of their
// own, so that a user's receive that waits long takes no place from a collective that it waits for.
struct Ends {
  std::unique_ptr<Communicator> users_inside;  // null, as the other one, for a rank that is alone
  std::unique_ptr<Communicator> users_between;
  std::unique_ptr<Communicator> collectives_inside;
  std::unique_ptr<Communicator> collectives_between;
};

// Collectives run one at a time: first the roll is called (roll_call.h), then its stages run
// (stages.h). An abort by any thread is noted, and ends the wires, at once; what is in flight here
// ends by the driving thread's next calls. Threads and contract: as Communicator. Owns: its ends
// and the operations in flight.
class HierarchicalCommunicator final : public Communicator {
 public:
  using OnClose = std::function<void(HierarchicalCommunicator*)>;

  HierarchicalCommunicator(CommunicatorId id, Generation generation, Layout layout, Ends ends,
                           SelectionTable table, OnClose on_close,
                           const Clock& clock = Clock::Real(), KindSet staged_kinds = kStagedKinds);
  ~HierarchicalCommunicator() override;

  Rank rank() const override { return rank_; }
  WorldSize world_size() const override { return WorldSize(layout_.world_size()); }
  CommunicatorId id() const override { return id_; }
  int spins() const override { return collectives_.spins(); }
  absl::Status Register(const Region& region) override;
  void Deregister(RegionId region) override;

  absl::StatusOr<std::optional<Rank>> FindSender(int32_t tag) override;
  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  bool Progress() override;
  State Query(Completion completion) override;
  // No call waits for both wires, so it looks at each in turn, at least once a millisecond.
  void Park(absl::Time until) override;
  void Wake() override;
  void Abort(const absl::Status& reason) override;
  std::vector<Rank> Missing() const override;

 private:
  enum class Phase { kIdle, kCallsRoll, kWidens, kRuns, kNarrows };
  struct Collective {
    uint64_t ticket = 0;
    Operation operation;
    OperationMemory memory;
  };
  struct Pair {
    uint64_t ticket = 0;
    Completion completion;
    Rank peer;
  };

  absl::Status Enqueue(const Operation& operation, const OperationMemory& memory);
  bool PollPairs();
  // Each does what can be done now; true if it moved anything. A status ends the communicator.
  absl::StatusOr<bool> AdvanceCollective();
  absl::StatusOr<bool> CallRoll();
  // Whether it is a mean that has stages and overflows in them.
  bool IsWide(const Operation& operation) const;
  absl::StatusOr<bool> BeginStages(const Operation& operation, const OperationMemory& memory);
  absl::StatusOr<bool> Run();
  void FinishCollective(const absl::Status& status);
  // After an abort: what is in flight ends when no wire holds its memory.
  bool Drain();

  const CommunicatorId id_;
  const Generation generation_;
  const Layout layout_;
  const Rank rank_;
  const SelectionTable table_;
  const OnClose on_close_;
  const KindSet staged_kinds_;  // all others run by a flat recipe
  Wires users_;
  Wires collectives_;
  std::atomic<bool> wake_ = false;

  EndReason ended_;
  uint64_t collective_count_ = 0;
  CompletionTable completions_;
  std::deque<Pair> pairs_;
  std::deque<Collective> queue_;  // the first one is under way
  Phase phase_ = Phase::kIdle;
  RollCall roll_call_;
  StagedRun run_;
  WideMean wide_;
};

}  // namespace pelton::hierarchy

#endif  // PELTON_COMM_HIERARCHY_HIERARCHICAL_COMMUNICATOR_H_
