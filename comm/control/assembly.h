// How the ranks of a job come together.
#ifndef PELTON_COMM_CONTROL_ASSEMBLY_H_
#define PELTON_COMM_CONTROL_ASSEMBLY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "comm/control/coordinator_messages.h"
#include "core/base/ids.h"

namespace pelton {

// A state machine: joins wait until the world is whole, then all are answered with its membership;
// or until one thing goes wrong, then all are answered with that. A contradiction between ranks
// (two processes of one number, sizes or versions that differ) is remembered for the ranks still to
// come, until all have been told or their join would have timed out; any other failure is forgotten
// at once. Every call is answered once, unless it is cancelled (ONCE-1). Threads: one at a time.
// Owns: the calls that wait.
class Assembly {
 public:
  Assembly(std::string job, Generation generation)
      : job_(std::move(job)), generation_(generation) {}

  // `request` has been validated on its own. Not to be called once there is a membership.
  void Join(const Call& call, JoinRequest request, Outbox* outbox);
  // The process behind the call is gone: nobody needs to wait for it.
  void Cancel(uint64_t call, Outbox* outbox);
  void Expire(absl::Time now, Outbox* outbox);
  absl::Time NextDeadline() const;

  // Null until the world is whole.
  const std::shared_ptr<const Membership>& membership() const { return membership_; }
  // Whether the failure has been forgotten.
  bool over() const;
  std::vector<Rank> waiting() const;

 private:
  struct Waiting {
    Call call;
    JoinRequest request;
  };

  absl::Status Contradiction(const JoinRequest& request) const;
  std::map<Rank, Waiting>::const_iterator Find(uint64_t call) const;
  void Complete(Outbox* outbox);
  // Answers all that wait.
  void Fail(const absl::Status& reason, Outbox* outbox);

  const std::string job_;
  const Generation generation_;
  std::map<Rank, Waiting> waiting_;
  DeadlineQueue deadlines_;
  WorldSize world_size_;  // as the first rank stated it
  std::shared_ptr<const Membership> membership_;
  std::optional<absl::Status> contradiction_;
  absl::flat_hash_set<Rank> told_;  // of the contradiction
  absl::Time forget_at_ = absl::InfinitePast();
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_ASSEMBLY_H_
