#include "core/actor/future_core.h"

#include "core/actor/backoff.h"
#include "core/actor/wait_hook.h"
#include "core/base/clock.h"
#include "core/base/futex.h"

namespace pelton::internal {

void FutureCore::Finish() {
  const uint32_t before = word_.fetch_or(kReady, std::memory_order_acq_rel);
  if ((before & kParked) != 0) FutexWake(&word_, kAllSleepers);
  // Either this sees the continuation or SetContinuation sees the result, never both.
  if ((before & kContinued) != 0) continuation_(argument_);
}

void FutureCore::SetContinuation(Continuation run, void* argument) {
  continuation_ = run;
  argument_ = argument;
  const uint32_t before = word_.fetch_or(kContinued, std::memory_order_acq_rel);
  if ((before & kReady) != 0) run(argument);
}

bool FutureCore::WaitUntil(absl::Time deadline) {
  if (ready()) return true;
  if (WaitHook* hook = WaitHook::Current(); hook != nullptr) {
    return hook->WaitUntil([this] { return ready(); }, deadline);
  }
  Backoff backoff;
  while (backoff.Pause()) {
    if (ready()) return true;
  }
  return ParkUntil(deadline);
}

bool FutureCore::ParkUntil(absl::Time deadline) {
  uint32_t word = word_.fetch_or(kParked, std::memory_order_acq_rel) | kParked;
  while ((word & kReady) == 0) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) return ready();
    FutexWait(&word_, word, left);
    word = word_.load(std::memory_order_acquire);
  }
  return true;
}

}  // namespace pelton::internal
