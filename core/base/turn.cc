#include "core/base/turn.h"

#include "core/base/clock.h"
#include "core/base/futex.h"

namespace pelton {

// Why no turn that is given back is slept through. Whoever waits puts kAwaited there and sleeps
// only while it is there. GiveBack takes away what it finds: kTaken says that nobody sleeps or is
// about to, because whoever waits replaces it first; at kAwaited it wakes one. That one leaves
// kAwaited behind when it takes the turn, for others that it does not know of.
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
