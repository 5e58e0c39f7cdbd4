#include "core/base/sync.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"

namespace pelton {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

int Operation(int operation, FutexScope scope) {
  return scope == FutexScope::kProcess ? operation | FUTEX_PRIVATE_FLAG : operation;
}

}  // namespace

void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, absl::Duration timeout,
               FutexScope scope) {
  if (timeout <= absl::ZeroDuration()) return;
  timespec limit;
  timespec* limit_or_null = nullptr;
  if (timeout != absl::InfiniteDuration()) {
    limit = absl::ToTimespec(timeout);
    limit_or_null = &limit;
  }
  syscall(SYS_futex, word, Operation(FUTEX_WAIT, scope), expected, limit_or_null, nullptr, 0);
}

void FutexWake(const std::atomic<uint32_t>* word, int count, FutexScope scope) {
  syscall(SYS_futex, word, Operation(FUTEX_WAKE, scope), count, nullptr, nullptr, 0);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  // Done under the mutex, so that a thread that changes the condition afterwards sees this waiter,
  // and its signal changes the count. Then the sleep below does not begin.
  waiters_.fetch_add(1, std::memory_order_relaxed);
  const uint32_t signals = signals_.load(std::memory_order_relaxed);
  mutex->Unlock();
  const absl::Duration left = deadline - Clock::Real().Now();
  FutexWait(&signals_, signals, left);
  mutex->Lock();
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  return Clock::Real().Now() >= deadline && signals_.load(std::memory_order_relaxed) == signals;
}

void CondVar::Wake(int count) {
  if (waiters_.load(std::memory_order_relaxed) == 0) return;
  signals_.fetch_add(1, std::memory_order_relaxed);
  FutexWake(&signals_, count);
}

// Why no waiting thread sleeps through a turn that is given back. A thread that waits stores
// kAwaited and sleeps only while the word is kAwaited. GiveBack replaces the word. If it was
// kTaken, no thread sleeps or is about to, because a waiting thread replaces kTaken first. If it
// was kAwaited, GiveBack wakes one thread. That thread stores kAwaited when it takes the turn,
// because others may wait that it does not know of.
bool Turn::Take(absl::Time deadline) {
  uint32_t free = kFree;
  if (state_.compare_exchange_strong(free, kTaken)) return true;
  if (deadline == absl::InfinitePast()) return false;  // no GiveBack need look for this thread
  while (state_.exchange(kAwaited) != kFree) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) return false;
    FutexWait(&state_, kAwaited, left);
  }
  return true;
}

void Turn::GiveBack() {
  if (state_.exchange(kFree) == kAwaited) FutexWake(&state_, 1);
}

}  // namespace pelton
