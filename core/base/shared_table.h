// Values by key that several threads find, enter and take back.
#ifndef PELTON_CORE_BASE_SHARED_TABLE_H_
#define PELTON_CORE_BASE_SHARED_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "core/base/sync.h"

namespace pelton {

// What is found is a copy, so that nobody holds the lock while using it. Functions that are passed
// must not call the table. Where it stands for a whole process a forked child must not ask it,
// because a thread that the child does not have may hold the lock (core/base/fork.h).
// Threads: any. Owns: the values.
template <typename Key, typename Value, typename Order = std::less<Key>>
class SharedTable {
 public:
  std::optional<Value> Find(const Key& key) const {
    MutexLock lock(&mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional<Value>(found->second);
  }
  // Two threads that ask at once get the same value. Blocks: as `make`. Errors: those of `make`.
  absl::StatusOr<Value> FindOrMake(const Key& key,
                                   absl::FunctionRef<absl::StatusOr<Value>()> make) {
    MutexLock lock(&mutex_);
    const auto found = values_.find(key);
    if (found != values_.end()) return found->second;
    absl::StatusOr<Value> made = make();
    if (made.ok()) values_.emplace(key, *made);
    return made;
  }
  // False, and no effect: there is one under `key`, or there are `most` in all.
  bool Enter(const Key& key, Value value, size_t most = SIZE_MAX) {
    MutexLock lock(&mutex_);
    return values_.size() < most && values_.emplace(key, std::move(value)).second;
  }
  // Takes it out. What it held ends when the caller lets go of it, without the lock.
  std::optional<Value> Take(const Key& key) {
    MutexLock lock(&mutex_);
    const auto node = values_.extract(key);
    return node.empty() ? std::nullopt : std::optional<Value>(std::move(node.mapped()));
  }
  // The same with all, by key.
  std::vector<Value> TakeAll() {
    MutexLock lock(&mutex_);
    std::vector<Value> taken;
    for (auto& [key, value] : values_) taken.push_back(std::move(value));
    values_.clear();
    return taken;
  }
  // By key.
  std::vector<Value> All() const {
    MutexLock lock(&mutex_);
    std::vector<Value> all;
    for (const auto& [key, value] : values_) all.push_back(value);
    return all;
  }
  bool AnyOf(absl::FunctionRef<bool(const Value&)> is_such) const {
    MutexLock lock(&mutex_);
    return std::any_of(values_.begin(), values_.end(),
                       [&](const auto& entry) { return is_such(entry.second); });
  }

 private:
  mutable Mutex mutex_;
  std::map<Key, Value, Order> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_SHARED_TABLE_H_
