// A communicator whose operations a daemon runs.
#ifndef PELTON_BACKEND_LINK_LINK_COMMUNICATOR_H_
#define PELTON_BACKEND_LINK_LINK_COMMUNICATOR_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "backend/link/link_client.h"
#include "backend/link/link_record.h"
#include "backend/link/link_socket.h"
#include "backend/link/staging.h"
#include "comm/communicator.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/transport.h"
#include "core/actor/backoff.h"
#include "core/base/sharing.h"
#include "core/pipeline/operation.h"

namespace pelton {

// Threads: as Communicator. Owns: its connection, and the regions that it stages through. An
// operation's memory is the daemon's, and its peers', until it has answered (OWN-1); after an Abort
// that of an operation that was staged as a whole is its caller's at once.
class LinkCommunicator final : public Communicator {
 public:
  struct Options {
    Rank rank;
    WorldSize world_size{1};
    CommunicatorId id;
    uint32_t number = 0;       // at the daemon
    uint64_t piece_bytes = 0;  // in which the daemon takes large allreduces; 0: as a whole
    // shared: the control and all communicators use the same link.
    std::shared_ptr<LinkClient> client;
    std::function<void(LinkCommunicator*)> on_close;
  };

  LinkCommunicator(Options options, std::unique_ptr<LinkSocket> socket);
  ~LinkCommunicator() override;

  Rank rank() const override { return options_.rank; }
  WorldSize world_size() const override { return options_.world_size; }
  CommunicatorId id() const override { return options_.id; }
  int spins() const override { return SpinningAllowed() ? Communicator::spins() : 0; }
  int yields() const override { return 0; }  // the daemon's answer wakes it
  absl::Status Register(const Region& region) override;
  void Deregister(RegionId region) override;
  // The daemon is asked, and its answer is given by a later call with this tag.
  absl::StatusOr<std::optional<Rank>> FindSender(int32_t tag) override;

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  bool Progress() override;
  State Query(Completion completion) override;
  void Park(absl::Time until) override;
  void Wake() override;
  // A daemon that did not answer when it was asked who is missing is named in the reason's place.
  void Abort(const absl::Status& reason) override;
  // This rank itself: its daemon does not answer. Blocks: for kMissingPatience.
  std::vector<Rank> Missing() const override;

 private:
  // What the daemon was asked of a tag's sender.
  struct SenderQuestion {
    bool is_overtaken = false;  // a receive may have taken the message that the answer will name
    std::optional<ParsedRecord> answer;  // none: it has not come
  };

  void SendAlone(LinkRecord::Kind kind, uint64_t ticket = 0);
  bool GoesInPieces(const Operation& operation, const OperationPlaces& places) const;
  bool AdvancePieces();
  bool PiecesMaySleep();
  absl::StatusOr<LinkRecord> Prepare(const Operation& operation, StagedOperation& staged);
  bool TakeAnswers();
  void Handle(const ParsedRecord& answer);
  void OnDone(const ParsedRecord& answer);
  void OnFound(const ParsedRecord& answer);
  // A receive that names its peer takes a message that an answer may have promised to another one.
  void Overtake(const Operation& receive);
  void TakeBack(StagedOperation& staged);
  void OnLost(const absl::Status& reason);

  const Options options_;
  const std::unique_ptr<LinkSocket> socket_;
  Descriptor wakes_;  // an eventfd

  CompletionTable table_;
  std::array<StagedOperation, CompletionTable::kPlaces> in_flight_;
  StagingPool pool_;
  std::vector<size_t> in_pieces_;  // places of operations that are staged so; some may have ended
  // By tag: callers that look for senders of several tags take turns, and each keeps its answer.
  std::map<int32_t, SenderQuestion> questions_;
  std::atomic<uint64_t> launches_{0};
  SharedList<RegionId> registered_;
  EndReason aborted_;
  // How long the daemon had not answered when it was last asked who is missing; 0: it has.
  mutable std::atomic<int64_t> silent_for_ns_{0};
};

// Communicators that live in the daemon of a trainer's rank.
// A transport whose communicators hand every operation to the daemon, which runs it among the
// daemons of the group's ranks. Memory in registered regions is used where it lies, because the
// daemon maps it; any other memory is staged. `client` is shared with the rank's LinkControl.
std::unique_ptr<Transport> MakeLinkTransport(std::shared_ptr<LinkClient> client);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_LINK_COMMUNICATOR_H_
