#include "core/base/sync.h"

#include "core/base/clock.h"

namespace pelton {

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

}  // namespace pelton
