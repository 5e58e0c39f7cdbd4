// How threads wait for each other: the kernel's wait on a word, through which everything in the
// runtime goes that parks a thread; the one mutex of the project; and turns that end by a deadline.
#ifndef PELTON_CORE_BASE_SYNC_H_
#define PELTON_CORE_BASE_SYNC_H_

#include <atomic>
#include <climits>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace pelton {

// Whether only this process waits on a word, or others that map the same memory do too.
enum class FutexScope { kProcess, kShared };

// Sleeps while `*word == expected`, until woken. May wake for no reason.
// Blocks: at most `timeout`.
void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, absl::Duration timeout,
               FutexScope scope = FutexScope::kProcess);

// A count that wakes every thread.
inline constexpr int kAllSleepers = INT_MAX;

// Wakes at most `count` of the threads that sleep on `word`.
// Blocks: never.
void FutexWake(const std::atomic<uint32_t>* word, int count,
               FutexScope scope = FutexScope::kProcess);

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

// One caller after the other, each of which waits until a deadline: for what lasts longer than a
// thread may wait without an end: the work between a Take and its GiveBack may itself wait for
// other ranks. The thread that gives a turn back may be another one than that which took it. No
// order among those that wait. Threads: any. Owns: nothing.
class ABSL_LOCKABLE Turn {
 public:
  Turn() = default;
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // False: somebody has kept it until `deadline` (of Clock::Real()). Blocks: until then.
  [[nodiscard]] bool Take(absl::Time deadline) ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true);
  // To be called once for each turn.
  void GiveBack() ABSL_UNLOCK_FUNCTION();

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kTaken = 1;
  static constexpr uint32_t kAwaited = 2;  // taken, and a thread may sleep

  std::atomic<uint32_t> state_{kFree};
};

// Gives a turn that was taken back at the end of a scope.
// Threads: the one that made it. Owns: the turn.
class ABSL_SCOPED_LOCKABLE TurnHolder {
 public:
  explicit TurnHolder(Turn* turn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn) : turn_(turn) {}
  ~TurnHolder() ABSL_UNLOCK_FUNCTION() { turn_->GiveBack(); }
  TurnHolder(const TurnHolder&) = delete;
  TurnHolder& operator=(const TurnHolder&) = delete;

 private:
  Turn* const turn_;
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_SYNC_H_
