#include "core/base/turn.h"

#include "core/base/clock.h"
#include "core/base/futex.h"

namespace pelton {

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
