// The seam that lets code which blocks a thread run under a simulation unchanged.
#ifndef PELTON_CORE_ACTOR_WAIT_HOOK_H_
#define PELTON_CORE_ACTOR_WAIT_HOOK_H_

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "core/base/clock.h"

namespace pelton {

// Takes the place of blocking on the thread it is installed on: a simulation runs its actors
// instead.
// Threads: the one it is installed on. Owns: nothing.
class WaitHook {
 public:
  virtual ~WaitHook() = default;
  // Makes progress until `done()` holds or the hook's clock reaches `deadline`; returns done().
  virtual bool WaitUntil(absl::FunctionRef<bool()> done, absl::Time deadline) = 0;
  virtual const Clock& clock() const = 0;

  // The one installed on this thread, or null.
  static WaitHook* Current();
  // Installs `hook` on this thread (null: none) and returns the previous one.
  static WaitHook* Install(WaitHook* hook);
};

// The clock that deadlines of waits on this thread are measured with.
const Clock& WaitClock();

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_WAIT_HOOK_H_
