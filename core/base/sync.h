// The one mutex of the project.
#ifndef PELTON_CORE_BASE_SYNC_H_
#define PELTON_CORE_BASE_SYNC_H_

#include "absl/base/config.h"
#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#ifdef ABSL_HAVE_THREAD_SANITIZER
#include <condition_variable>
#include <mutex>
#else
#include "absl/synchronization/mutex.h"
#endif

namespace pelton {

// The distribution's Abseil is not instrumented for the thread sanitizer, which would take every
// access it guards for a race: under that sanitizer the standard library's mutex takes its place.
#ifdef ABSL_HAVE_THREAD_SANITIZER

// Threads: any. Owns: nothing.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Threads: any. Owns: nothing.
class CondVar {
 public:
  // Waits for a signal until `deadline`; true if it passed. The caller holds `mutex` and tests its
  // condition again afterwards: wake-ups may be spurious.
  bool WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    bool timed_out = false;
    if (deadline == absl::InfiniteFuture()) {
      cv_.wait(lock);
    } else {
      timed_out = cv_.wait_until(lock, absl::ToChronoTime(deadline)) == std::cv_status::timeout;
    }
    lock.release();
    return timed_out;
  }
  void Signal() { cv_.notify_one(); }
  void SignalAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

#else
using Mutex = absl::Mutex;
using CondVar = absl::CondVar;
#endif

// Holds a mutex for a scope.
// Threads: the one that made it. Owns: the lock.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* mutex_;
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_SYNC_H_
