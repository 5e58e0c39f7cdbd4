// The things of one kind that live in a process, by number.
#ifndef PELTON_CORE_BASE_WEAK_TABLE_H_
#define PELTON_CORE_BASE_WEAK_TABLE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "core/base/sync.h"

namespace pelton {

// Finds things for as long as somebody else keeps them. Numbers are from 0 to 2^31 - 1; one comes
// again after all others.
// Threads: any. Owns: nothing of the things.
template <typename T>
class WeakTable {
 public:
  // A number that no thing has. The thing is entered under it by Enter.
  int32_t NextId() {
    MutexLock lock(&mutex_);
    do {
      last_id_ = last_id_ == INT32_MAX ? 0 : last_id_ + 1;
    } while (things_.contains(last_id_));
    return last_id_;
  }
  void Enter(int32_t id, std::weak_ptr<T> thing) {
    MutexLock lock(&mutex_);
    things_.insert_or_assign(id, std::move(thing));
  }
  // What was entered under `id`, or null if there was nothing or it has died.
  std::shared_ptr<T> Find(int32_t id) {
    MutexLock lock(&mutex_);
    const auto found = things_.find(id);
    return found == things_.end() ? nullptr : found->second.lock();
  }
  void Remove(int32_t id) {
    MutexLock lock(&mutex_);
    things_.erase(id);
  }

 private:
  Mutex mutex_;
  int32_t last_id_ ABSL_GUARDED_BY(mutex_) = -1;
  absl::flat_hash_map<int32_t, std::weak_ptr<T>> things_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_WEAK_TABLE_H_
