// Ranks that are processes of one host: how they meet, and the stand-in's wire between them, which
// is shared memory.
#ifndef PELTON_COMM_TRANSPORT_NCCL_STAND_IN_MEETING_H_
#define PELTON_COMM_TRANSPORT_NCCL_STAND_IN_MEETING_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/nccl/stand_in/arrival.h"
#include "comm/transport/transport.h"
#include "core/base/sync.h"

namespace pelton::stand_in {

// Threads: a value. Owns: its name.
struct Place {
  std::string name;  // of a Unix socket in the abstract namespace, which vanishes with rank 0
  int rank;
  int rank_count;
};

// Rank 0 listens and gathers, the others connect to it. Threads: one. Owns: the sockets.
class Meeting final : public Bootstrap {
 public:
  // The ranks may come in any order. `cancelled` outlives the meeting. Blocks: until all are here,
  // `deadline`, or soon after `cancelled` is set. Errors: DeadlineExceeded: names the missing
  // ranks; Cancelled; Unavailable: the system says no.
  static absl::StatusOr<std::unique_ptr<Meeting>> Attend(const Place& place,
                                                         const std::atomic<bool>& cancelled,
                                                         absl::Time deadline);

  // Bootstrap. Errors: also Cancelled; Unavailable: a rank has gone.
  absl::StatusOr<std::vector<std::string>> AllGather(const std::string& key,
                                                     const std::string& value,
                                                     absl::Time deadline) override;

 private:
  Meeting(Place place, const std::atomic<bool>& cancelled)
      : place_(std::move(place)), cancelled_(cancelled) {}

  absl::Status AcceptAll(absl::Time deadline);
  absl::Status ConnectToFirst(absl::Time deadline);
  absl::StatusOr<std::vector<std::string>> Collect(const std::string& value, absl::Time deadline);
  absl::StatusOr<std::string> Hear(int peer, absl::Time deadline);
  template <typename Attempt>
  auto Patiently(absl::Time deadline, Attempt attempt) -> decltype(attempt(deadline));

  const Place place_;
  const std::atomic<bool>& cancelled_;
  std::vector<Descriptor> sockets_;  // by rank; only that of rank 0 is open on the others
};

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

#endif  // PELTON_COMM_TRANSPORT_NCCL_STAND_IN_MEETING_H_
