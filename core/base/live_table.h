// What a process has once, however many ask for it.
#ifndef PELTON_CORE_BASE_LIVE_TABLE_H_
#define PELTON_CORE_BASE_LIVE_TABLE_H_

#include <map>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "core/base/sync.h"

namespace pelton {

// Finds a thing by its key for as long as anybody keeps it, and makes it anew after that: two
// threads that ask at once get the same thing. Such a table is a static object that is never
// destroyed, because things may outlive every other one. A forked child must not ask it, because a
// thread that the child does not have may hold the lock (core/base/fork.h).
// Threads: any. Owns: nothing of the things.
template <typename Key, typename T>
class LiveTable {
 public:
  using Pointer = std::shared_ptr<T>;
  using Make = absl::FunctionRef<absl::StatusOr<Pointer>()>;

  // Blocks: as `make`, also while another thread makes one. Errors: those of `make`.
  absl::StatusOr<Pointer> FindOrMake(const Key& key, Make make) {
    MutexLock lock(&mutex_);
    const auto found = things_.find(key);
    if (found != things_.end()) {
      if (Pointer thing = found->second.lock()) return thing;
    }
    // Nobody tells of a thing's end: the table is no larger than twice what lived at once.
    std::erase_if(things_, [](const auto& entry) { return entry.second.expired(); });
    absl::StatusOr<Pointer> made = make();
    if (made.ok()) things_[key] = *made;
    return made;
  }

 private:
  Mutex mutex_;
  std::map<Key, std::weak_ptr<T>> things_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_LIVE_TABLE_H_
