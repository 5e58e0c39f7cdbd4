#include "core/base/private_in_children.h"

#include <sys/mman.h>

#include <set>

#include "core/base/fork.h"
#include "core/base/sync.h"

namespace pelton {

// The live ones of this process. A registry in the sense of the style guide.
// Threads: any. Owns: its index, not what is in it.
class PrivateInChildrenTable {
 public:
  static PrivateInChildrenTable& Get() {
    static PrivateInChildrenTable* const table = [] {
      AddForkSteps({.before = [] { Get().LockForFork(); },
                    .in_parent = [] { Get().UnlockAfterFork(); },
                    .in_child = [](bool is_first) { Get().BePrivate(is_first); }});
      return new PrivateInChildrenTable;  // outlives every mapping
    }();
    return *table;
  }

  void Insert(const PrivateInChildren* memory) {
    MutexLock lock(&mutex_);
    live_.insert(memory);
  }

  void Erase(const PrivateInChildren* memory) {
    MutexLock lock(&mutex_);
    live_.erase(memory);
  }

 private:
  // None comes or goes while the process forks.
  void LockForFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }
  void UnlockAfterFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }

  // A child of a child has its parent's copy already, and would lose what is written there.
  void BePrivate(bool is_first) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const PrivateInChildren* memory : live_) {
      if (!is_first) break;
      mmap(memory->data_, memory->size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
           memory->descriptor_, 0);
    }
    mutex_.Unlock();
  }

  Mutex mutex_;
  std::set<const PrivateInChildren*> live_ ABSL_GUARDED_BY(mutex_);
};

PrivateInChildren::PrivateInChildren(void* data, size_t size_bytes, int descriptor)
    : data_(data), size_bytes_(size_bytes), descriptor_(descriptor) {
  PrivateInChildrenTable::Get().Insert(this);
}

PrivateInChildren::~PrivateInChildren() { PrivateInChildrenTable::Get().Erase(this); }

}  // namespace pelton
