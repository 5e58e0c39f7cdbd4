// The job's key-value store, as its clients see it: what a torch Store needs.
#ifndef PELTON_COMM_CONTROL_KEY_VALUE_H_
#define PELTON_COMM_CONTROL_KEY_VALUE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace pelton {

class Control;

// One operation. Threads: a value. Owns: its strings.
struct KeyValueRequest {
  enum class Kind { kSet = 1, kGet, kWait, kCheck, kAdd, kCompareAndSet, kDelete, kNumKeys };
  Kind kind = Kind::kSet;
  std::vector<std::string> keys;  // kWait, kCheck: any number; kNumKeys: none; the others: one
  std::string value = {};         // kSet, kCompareAndSet
  std::string expected = {};      // kCompareAndSet
  int64_t delta = 0;              // kAdd
};

struct KeyValueResult {
  std::string value = {};  // kGet, kCompareAndSet
  // kAdd: the sum; kCheck, kDelete: 0 or 1; kCompareAndSet: 1 if it replaced the value; kNumKeys:
  // the count
  int64_t number = 0;
};

// The typed form of one job's store.
// Threads: any. Owns: nothing; the Control must outlive it.
class KeyValueStore {
 public:
  explicit KeyValueStore(Control* control) : control_(control) {}

  absl::Status Set(const std::string& key, const std::string& value, absl::Time deadline);
  // The key's value, as soon as it has one. Blocks: until then, or `deadline`. Errors:
  // DeadlineExceeded: names the key; Unavailable, Aborted: there is no such key and a rank died or
  // reported a failure, so nobody may be left to set it.
  absl::StatusOr<std::string> Get(const std::string& key, absl::Time deadline);
  // Returns when all keys exist. Blocks and Errors: as Get.
  absl::Status Wait(const std::vector<std::string>& keys, absl::Time deadline);
  // Whether all keys exist now.
  absl::StatusOr<bool> Check(const std::vector<std::string>& keys, absl::Time deadline);
  // Adds to the decimal number under `key` (0 when absent) and returns the sum. Errors:
  // FailedPrecondition: the value is no number; OutOfRange: the sum overflows.
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t delta, absl::Time deadline);
  // Replaces the value by `desired` if it is `expected`, or if the key is absent and `expected`
  // empty; returns the value that the key then has. Errors: NotFound: absent, `expected` not empty.
  absl::StatusOr<std::string> CompareAndSet(const std::string& key, const std::string& expected,
                                            const std::string& desired, absl::Time deadline);
  // Puts `tail` behind the key's value; an absent key counts as empty. Atomic, but many appenders
  // to one key get in each other's way.
  absl::Status Append(const std::string& key, const std::string& tail, absl::Time deadline);
  // True if there was such a key.
  absl::StatusOr<bool> Delete(const std::string& key, absl::Time deadline);
  absl::StatusOr<int64_t> NumKeys(absl::Time deadline);

 private:
  Control* control_;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_KEY_VALUE_H_
