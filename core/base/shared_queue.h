// What threads leave for another one.
#ifndef PELTON_CORE_BASE_SHARED_QUEUE_H_
#define PELTON_CORE_BASE_SHARED_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "core/base/sync.h"

namespace pelton {

// For a thread that looks for what has come in the course of other work, and sleeps on something
// else: whoever pushes wakes it by that afterwards. A thread that only receives has an Inbox
// (inbox.h), and what has state of its own is an actor.
// Threads: any. Owns: the entries that nobody has taken.
template <typename T>
class SharedQueue {
 public:
  // `most`: entries that are there at once.
  explicit SharedQueue(size_t most = SIZE_MAX) : most_(most) {}
  SharedQueue(const SharedQueue&) = delete;
  SharedQueue& operator=(const SharedQueue&) = delete;

  // Behind the others. False, and no effect: there are as many as there may be.
  bool Push(T entry) {
    MutexLock lock(&mutex_);
    if (entries_.size() >= most_) return false;
    entries_.push_back(std::move(entry));
    return true;
  }
  // The oldest one; nothing: there is none.
  std::optional<T> Take() {
    MutexLock lock(&mutex_);
    if (entries_.empty()) return std::nullopt;
    std::optional<T> taken(std::move(entries_.front()));
    entries_.pop_front();
    return taken;
  }
  // For what is as good as any other one, and better if it has just been used.
  std::optional<T> TakeNewest() {
    MutexLock lock(&mutex_);
    if (entries_.empty()) return std::nullopt;
    std::optional<T> taken(std::move(entries_.back()));
    entries_.pop_back();
    return taken;
  }
  // All of them, the oldest first.
  std::deque<T> TakeAll() {
    std::deque<T> taken;
    MutexLock lock(&mutex_);
    taken.swap(entries_);
    return taken;
  }
  bool is_empty() const {
    MutexLock lock(&mutex_);
    return entries_.empty();
  }

 private:
  const size_t most_;
  mutable Mutex mutex_;
  std::deque<T> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_SHARED_QUEUE_H_
