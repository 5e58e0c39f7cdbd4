// The daemon's side of a communicator that its trainer uses.
#ifndef PELTON_BACKEND_LINK_SERVED_COMMUNICATOR_H_
#define PELTON_BACKEND_LINK_SERVED_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/link/link_record.h"
#include "backend/link/link_socket.h"
#include "backend/link/trainer_regions.h"
#include "comm/communicator.h"
#include "core/base/sync.h"

namespace pelton {

// Launches what the trainer's records say, over the trainer's memory, which this process and those
// of the peers map, and tells of each end. Anything that is no proper record, and any memory
// outside of what was registered, is refused with an error that names it.
// Threads: Serve by one, which reads, and drives the communicator until it is time to park; a
// thread of its own drives what lasts longer. MissingAfter and in_flight by any. Owns: the
// communicator, the connection, its share of the regions.
class ServedCommunicator {
 public:
  // `socket` is shared with the server, which ends it when it stops.
  ServedCommunicator(std::unique_ptr<Communicator> communicator,
                     std::shared_ptr<LinkSocket> socket);
  ~ServedCommunicator();
  ServedCommunicator(const ServedCommunicator&) = delete;
  ServedCommunicator& operator=(const ServedCommunicator&) = delete;

  // Until the trainer closes it in good order (OK) or is gone (why; the communicator is aborted
  // with that, as `gone` words it). Blocks: until then.
  absl::Status Serve(absl::string_view gone);

  // Once `launches` of the trainer have come, which travel apart from the question. Blocks: for
  // half a second at most.
  std::vector<Rank> MissingAfter(uint64_t launches) const;
  size_t in_flight() const { return in_flight_count_.load(std::memory_order_relaxed); }

 private:
  struct Launched {
    uint64_t ticket = 0;
    Completion completion;
    // The memory, which stays registered until the operation has ended.
    TrainerRegions::Pointer source;
    TrainerRegions::Pointer target;
    RegionId trainers_target = kPrivateRegion;  // the target by the trainer's number
  };

  absl::Status Take(LinkSocket::Message message);
  // On the thread that reads, as long as it is not time to park; the driver has the rest. Errors:
  // as Take.
  absl::Status DriveSome();
  void Drive();
  // Until nothing is in flight.
  void DriveAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  // Whether anything has moved.
  bool Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  bool RunQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  void Launch(const LinkRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  // Has the operation name regions of this process, which `launched` keeps.
  absl::Status Translate(Operation* operation, Launched* launched) const;
  bool IsClosing();
  void FindSender(const LinkRecord& question);
  bool TellEnds() ABSL_EXCLUSIVE_LOCKS_REQUIRED(driving_);
  void TellEnd(const Launched& ended, absl::Status status);
  void Tell(const LinkRecord& record, const absl::Status& status);

  const std::unique_ptr<Communicator> communicator_;
  const std::shared_ptr<LinkSocket> socket_;
  TrainerRegions regions_;
  Mutex driving_;  // held by whoever drives the communicator
  std::vector<Launched> in_flight_ ABSL_GUARDED_BY(driving_);
  std::atomic<size_t> in_flight_count_{0};
  std::atomic<uint64_t> launches_{0};

  mutable Mutex mutex_;
  CondVar news_;
  std::deque<LinkRecord> queue_ ABSL_GUARDED_BY(mutex_);
  bool is_left_ ABSL_GUARDED_BY(mutex_) =
      false;  // something is in flight that the driver is to end
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread driver_;  // last: it uses the others
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_SERVED_COMMUNICATOR_H_
