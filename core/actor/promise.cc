#include "core/actor/promise.h"

#include "core/actor/backoff.h"
#include "core/actor/wait_hook.h"
#include "core/base/clock.h"

namespace pelton::internal {

bool FutureCore::WaitUntil(absl::Time deadline) {
  if (ready()) return true;
  if (WaitHook* hook = WaitHook::Current(); hook != nullptr) {
    return hook->WaitUntil([this] { return ready(); }, deadline);
  }
  Backoff backoff;
  while (backoff.Pause()) {
    if (ready()) return true;
  }
  for (;;) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) return ready();
    if (Park(left)) return true;
  }
}

}  // namespace pelton::internal
