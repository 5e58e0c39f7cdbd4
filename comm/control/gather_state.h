// The all-gathers of one job that are under way.
#ifndef PELTON_COMM_CONTROL_GATHER_STATE_H_
#define PELTON_COMM_CONTROL_GATHER_STATE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "comm/control/control.h"
#include "comm/control/coordinator_messages.h"
#include "core/base/ids.h"

namespace pelton {

// A state machine: a gather ends for all of its callers at once, with all values or with one error;
// then its name is free again. Every call is answered once, unless it is cancelled (ONCE-1).
// Threads: one at a time. Owns: the values posted so far and the calls that wait.
class GatherState {
 public:
  explicit GatherState(WorldSize world_size) : world_size_(world_size) {}

  // Errors: InvalidArgument: names the field; AlreadyExists: this rank already waits in the same;
  // ResourceExhausted: the values of all ranks together are too large.
  void Post(const Call& call, Rank rank, AllGatherRequest request, Outbox* outbox);
  // Withdraws the value that came with the call.
  void Cancel(uint64_t call);
  void Expire(absl::Time now, Outbox* outbox);
  // `rank` posts nothing more. Gathers of which it is a member fail with `reason`, those under way
  // and those to come, because its value will not arrive; other gathers go on.
  void Leave(Rank rank, const absl::Status& reason, Outbox* outbox);
  // Answers every call that waits.
  void Fail(const absl::Status& reason, Outbox* outbox);
  absl::Time NextDeadline() const { return deadlines_.Next(); }

 private:
  // What tells one gather from another. All ranks in order is the empty list.
  struct Key {
    std::vector<Rank> members;
    std::string name;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Posted {
    Call call;
    std::string value;
  };
  // Threads: one at a time. Owns: the values.
  struct Gather {
    std::map<Rank, Posted> posted;
    size_t bytes = 0;
  };

  absl::Status CheckMembers(Rank rank, const std::vector<Rank>& members) const;
  absl::Status Validate(Rank rank, const Key& key, const std::string& value) const;
  // By their place in the gather's answer.
  std::vector<Rank> MembersOf(const Key& key) const;
  // Why the gather can never be complete; OK if it can.
  absl::Status WhyHopeless(const Key& key) const;
  void Complete(const Key& key, Outbox* outbox);
  void FailOne(const Key& key, const absl::Status& reason, Outbox* outbox);
  Gather Take(const Key& key);

  const WorldSize world_size_;
  std::map<Key, Gather> gathers_;
  std::map<Rank, absl::Status> left_;                         // with the reason
  absl::flat_hash_map<uint64_t, std::pair<Key, Rank>> keys_;  // by call
  DeadlineQueue deadlines_;
  size_t bytes_ = 0;  // of all values
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_GATHER_STATE_H_
