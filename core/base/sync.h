// The one mutex of the project.
#ifndef PELTON_CORE_BASE_SYNC_H_
#define PELTON_CORE_BASE_SYNC_H_

#include <atomic>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "core/base/futex.h"

namespace pelton {

// The standard library's, with Abseil's annotations. Debian builds absl::Mutex so that each Lock
// and Unlock looks for circles among all mutexes: some 180 instructions each, half of what
// launching an operation of a few bytes takes. The thread sanitizer, which sees this one only,
// finds circles too. Threads: any. Owns: nothing.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  std::mutex mutex_;
};

// Waits end by Clock::Real(), which no step of the wall clock moves; those of the libraries end by
// the wall clock.
// Threads: any. Owns: nothing.
class CondVar {
 public:
  // Waits for a signal until `deadline` (of Clock::Real()); true if it passed. The caller holds
  // `mutex` and tests its condition again afterwards: wake-ups may be spurious.
  bool WaitWithDeadline(Mutex* mutex, absl::Time deadline);
  // The same without an end.
  void Wait(Mutex* mutex) { WaitWithDeadline(mutex, absl::InfiniteFuture()); }
  void Signal() { Wake(1); }
  void SignalAll() { Wake(kAllSleepers); }

 private:
  void Wake(int count);

  std::atomic<uint32_t> signals_{0};
  std::atomic<int32_t> waiters_{0};
};

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
