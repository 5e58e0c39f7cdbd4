// Ranks that are processes of one host: the stand-in's wire between them is shared memory.
#ifndef PELTON_COMM_TRANSPORT_NCCL_STAND_IN_PROCESS_ARRIVAL_H_
#define PELTON_COMM_TRANSPORT_NCCL_STAND_IN_PROCESS_ARRIVAL_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "comm/transport/nccl/stand_in/arrival.h"
#include "comm/transport/nccl/stand_in/meeting.h"
#include "core/base/sync.h"

namespace pelton::stand_in {

// A name for a place that nobody else has; where ranks are processes it is NCCL's unique id.
std::string NewPlaceName();
bool IsPlaceName(const std::string& id);

// Meets the other ranks in a thread, as the real one's initialisation is in the background.
// Threads: as Arrival. Owns: the transport and the thread that makes it.
class ProcessArrival final : public Arrival {
 public:
  // `patience` bounds the wait for the other ranks.
  ProcessArrival(const Place& place, absl::Duration patience);
  // Blocks: until the thread has seen that it is cancelled, which it does not look for only while
  // ranks that have all come shake hands.
  ~ProcessArrival() override;
  absl::StatusOr<std::unique_ptr<Communicator>> Take() override;

 private:
  absl::Status Meet(absl::Time deadline);

  const Place place_;
  std::atomic<bool> cancelled_ = false;
  Mutex mutex_;
  bool has_met_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Transport> transport_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Communicator> communicator_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace pelton::stand_in

#endif  // PELTON_COMM_TRANSPORT_NCCL_STAND_IN_PROCESS_ARRIVAL_H_
