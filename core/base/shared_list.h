// Things that several threads enter, take back and visit.
#ifndef PELTON_CORE_BASE_SHARED_LIST_H_
#define PELTON_CORE_BASE_SHARED_LIST_H_

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/base/sync.h"

namespace pelton {

// A transport's open communicators, for instance: whichever thread learns that a rank is gone
// aborts all of them, while others open and close some. What is visited is still entered: whoever
// has taken its own entry back may destroy what that names. Visitors must not call the list.
// Threads: any. Owns: the entries.
template <typename T>
class SharedList {
 public:
  // Equal entries may be there several times.
  void Add(T entry) {
    MutexLock lock(&mutex_);
    entries_.push_back(std::move(entry));
  }
  // False, and no effect: an equal one is there.
  bool AddNew(T entry) {
    MutexLock lock(&mutex_);
    if (std::find(entries_.begin(), entries_.end(), entry) != entries_.end()) return false;
    entries_.push_back(std::move(entry));
    return true;
  }
  // Takes one entry back. False: there was none. Blocks: while another thread visits.
  bool Remove(const T& entry) {
    MutexLock lock(&mutex_);
    const auto found = std::find(entries_.begin(), entries_.end(), entry);
    if (found == entries_.end()) return false;
    entries_.erase(found);
    return true;
  }
  // Takes back the one that was entered first; nothing: there is none. Blocks: as Remove.
  std::optional<T> TakeFirst() {
    MutexLock lock(&mutex_);
    if (entries_.empty()) return std::nullopt;
    std::optional<T> taken(std::move(entries_.front()));
    entries_.erase(entries_.begin());
    return taken;
  }
  // Takes back all that `is_over` says. True: none is left. Blocks: as Remove.
  bool RemoveIf(absl::FunctionRef<bool(const T&)> is_over) {
    MutexLock lock(&mutex_);
    std::erase_if(entries_, is_over);
    return entries_.empty();
  }

  // In the order of the entering; none comes or goes meanwhile. Blocks: as `visit`.
  void ForEach(absl::FunctionRef<void(const T&)> visit) const {
    MutexLock lock(&mutex_);
    for (const T& entry : entries_) visit(entry);
  }
  std::vector<T> All() const {
    MutexLock lock(&mutex_);
    return entries_;
  }
  bool Contains(const T& entry) const {
    MutexLock lock(&mutex_);
    return std::find(entries_.begin(), entries_.end(), entry) != entries_.end();
  }
  size_t size() const {
    MutexLock lock(&mutex_);
    return entries_.size();
  }

 private:
  mutable Mutex mutex_;
  std::vector<T> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_SHARED_LIST_H_
