// The daemon's side of a communicator that its trainer uses.
#ifndef PELTON_BACKEND_LINK_SERVED_COMMUNICATOR_H_
#define PELTON_BACKEND_LINK_SERVED_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/link/link_record.h"
#include "backend/link/link_socket.h"
#include "backend/link/piece_ring.h"
#include "backend/link/set_up_log.h"
#include "backend/link/trainer_regions.h"
#include "comm/communicator.h"
#include "core/base/sharing.h"
#include "core/base/sync.h"
#include "core/base/threads.h"

namespace pelton {

// Launches what the trainer's records say, over the trainer's memory, which this process and those
// of the peers map, and tells of each end. Anything that is no proper record, and any memory
// outside of what was registered, is refused with an error that names it.
// Threads: Serve by one, which reads, and drives the communicator until it is time to park; a
// drive thread drives what lasts longer. MissingAfter and in_flight by any. Owns: the communicator,
// the connection, its share of the regions, the drive thread.
class ServedCommunicator {
 public:
  // What an heir of the trainer goes on with.
  struct Line {
    std::shared_ptr<Communicator> communicator;   // shared: one trainer's after the other
    std::shared_ptr<OperationLog> log = nullptr;  // null: there will be no heir
    // Of the first opening, at this daemon: an heir opens those of the same members in that order.
    uint32_t number = 0;
    bool replays = false;                          // the log's operations are launched once more
    const std::atomic<bool>* is_set_up = nullptr;  // while not so, operations are logged
  };
  // In which the trainer may launch: 0 where what an operation has brought is kept for an heir,
  // because the whole of it is never here.
  static uint64_t PieceBytesOf(const Line& line) {
    return line.log == nullptr ? line.communicator->piece_bytes() : 0;
  }
  // `socket` is shared with the server, which ends it when it stops.
  ServedCommunicator(Line line, std::shared_ptr<LinkSocket> socket);
  // Blocks: until nothing is in flight, which it ends.
  ~ServedCommunicator();
  ServedCommunicator(const ServedCommunicator&) = delete;
  ServedCommunicator& operator=(const ServedCommunicator&) = delete;

  // Until the trainer closes it in good order (OK) or is gone (why; the communicator is aborted
  // with that, as `gone` words it, unless it is left to an heir). Blocks: until then.
  absl::Status Serve(absl::string_view gone);
  // The trainer has a snapshot of what it has got so far.
  void Keep() {
    kept_launches_.store(launches_.load());
    has_kept_.store(true);
    begun_launches_.reset();
  }
  // As SetUpLog's. Threads: one at a time, Keep included.
  void BeginKeep() { begun_launches_ = launches_.load(); }
  void KeepBegun() {
    if (!begun_launches_.has_value()) return;
    kept_launches_.store(*std::exchange(begun_launches_, std::nullopt));
    has_kept_.store(true);
  }
  // Once Serve has returned: whether an heir can go on with it.
  bool is_left() const { return is_left_to_heir_; }

  // Once `launches` of the trainer have come, which travel apart from the question; asked of
  // whoever drives. Blocks: for half a second at most; nobody is missing as far as is known then.
  std::vector<Rank> MissingAfter(uint64_t launches);
  size_t in_flight() const { return in_flight_count_.load(std::memory_order_relaxed); }

 private:
  struct Launched {
    uint64_t ticket = 0;
    Completion completion;
    // The memory, which stays registered until the operation has ended.
    TrainerRegions::Pointer source;
    TrainerRegions::Pointer target;
    RegionId trainers_target = kPrivateRegion;  // the target by the trainer's number
    // Where it brings what.
    std::byte* place = nullptr;
    size_t size_bytes = 0;
    std::optional<size_t> logged;       // its number in the log
    std::unique_ptr<PieceRing> pieces;  // over `target`; null: launched as a whole
  };

  absl::Status Take(LinkSocket::Message message);
  // On the thread that reads, as long as it is not time to park; the drive thread has the rest.
  // Errors: as Take.
  absl::Status DriveSome();
  // The drive thread's call.
  void Drive();
  // Until nothing is in flight.
  void DriveAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  // Whether anything has moved.
  bool Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  bool RunQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  bool Run(const LinkRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  bool HasNoRoom(const absl::Status& launched) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  bool Launch(const LinkRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  bool LaunchInPieces(const LinkRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  absl::StatusOr<Completion> LaunchOver(const LinkRecord& record, Launched* launched) const;
  // Whether only the trainer can move what is in flight.
  bool AwaitsTrainer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  void Replay(const LinkRecord& record, size_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  bool MayBeLeft();
  // Has the operation name regions of this process, which `launched` keeps.
  absl::Status Translate(Operation* operation, Launched* launched) const;
  void FindSender(const LinkRecord& question);
  void TellMissing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  void TellMissingMyself();
  bool TellEnds() ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  void TellEnd(const Launched& ended, absl::Status status);
  void Tell(const LinkRecord& record, const absl::Status& status);
  void TellDone(uint64_t ticket, const absl::Status& status);

  const Line line_;
  Communicator* const communicator_;  // of the line
  const std::shared_ptr<LinkSocket> socket_;
  TrainerRegions regions_;
  Turn driving_;  // of the thread that drives the communicator
  std::vector<Launched> in_flight_ ABSL_GUARDED_BY(driving_);
  std::deque<LinkRecord> held_
      ABSL_GUARDED_BY(driving_);  // the first is not launched for want of room
  std::atomic<bool> is_held_{false};
  std::atomic<size_t> in_flight_count_{0};
  std::atomic<bool> has_pieces_{false};    // something in flight was launched in pieces
  std::atomic<bool> reader_looks_{false};  // the reader waits, but drives again soon in any case
  std::atomic<uint64_t> launches_{0};
  std::atomic<uint64_t> kept_launches_{0};
  std::optional<uint64_t> begun_launches_;  // when the snapshot that is being copied began
  std::atomic<bool> has_kept_{false};       // so that its set-up is over
  bool is_left_to_heir_ = false;

  SharedQueue<LinkRecord> queue_;
  Turn asking_;  // of whoever asks which ranks are missing
  std::atomic<bool> is_asked_{false};
  SharedQueue<std::vector<Rank>> missing_;  // the answer
  std::atomic<bool> is_closing_{false};

  CallThread drive_thread_;  // last: its calls use the others
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_SERVED_COMMUNICATOR_H_
