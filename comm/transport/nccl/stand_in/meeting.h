// Where ranks that are processes of one host find each other, knowing nothing but a name.
#ifndef PELTON_COMM_TRANSPORT_NCCL_STAND_IN_MEETING_H_
#define PELTON_COMM_TRANSPORT_NCCL_STAND_IN_MEETING_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/transport.h"

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

}  // namespace pelton::stand_in

#endif  // PELTON_COMM_TRANSPORT_NCCL_STAND_IN_MEETING_H_
