// The key-value store of one job, with the calls that wait for keys.
#ifndef PELTON_COMM_CONTROL_KEY_VALUE_STATE_H_
#define PELTON_COMM_CONTROL_KEY_VALUE_STATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "comm/control/coordinator_messages.h"
#include "comm/control/key_value.h"

namespace pelton {

// A state machine: requests in, replies out. Every call is answered once: at once, when its keys
// exist, by Expire or by Fail; or never, after Cancel (ONCE-1).
// Threads: one at a time. Owns: keys, values and the calls that wait.
class KeyValueState {
 public:
  // Errors: InvalidArgument: names the field; ResourceExhausted: the store is full.
  void Handle(const Call& call, KeyValueRequest request, Outbox* outbox);
  void Cancel(uint64_t call);
  void Expire(absl::Time now, Outbox* outbox);
  // Answers every call that waits, and from now on every one that would have to.
  void Fail(const absl::Status& reason, Outbox* outbox);
  absl::Time NextDeadline() const { return deadlines_.Next(); }

 private:
  // A kGet or kWait; it is parked under the first of its keys that does not exist.
  struct Waiting {
    Call call;
    KeyValueRequest request;
    std::string parked_under;
  };

  absl::Status Validate(const KeyValueRequest& request) const;
  absl::StatusOr<KeyValueResult> Apply(KeyValueRequest& request, Outbox* outbox);
  absl::StatusOr<KeyValueResult> Add(const std::string& key, int64_t delta, Outbox* outbox);
  absl::StatusOr<KeyValueResult> CompareAndSet(KeyValueRequest& request, Outbox* outbox);
  absl::Status Put(const std::string& key, std::string value, Outbox* outbox);
  bool Erase(const std::string& key);
  // Answers the call if all of its keys exist, else parks it.
  void AnswerOrPark(Waiting waiting, Outbox* outbox);
  Waiting Take(uint64_t call);
  static void AnswerFailed(const Waiting& waiting, const absl::Status& reason, Outbox* outbox);

  absl::flat_hash_map<std::string, std::string> values_;
  absl::flat_hash_map<uint64_t, Waiting> waiting_;
  absl::flat_hash_map<std::string, std::vector<uint64_t>> parked_;  // by key, in order of arrival
  DeadlineQueue deadlines_;
  std::optional<absl::Status> failed_because_;
  size_t bytes_ = 0;  // of all keys and values
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_KEY_VALUE_STATE_H_
