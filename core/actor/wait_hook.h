// The seam that lets code which blocks a thread run under a simulation unchanged.
#ifndef PELTON_CORE_ACTOR_WAIT_HOOK_H_
#define PELTON_CORE_ACTOR_WAIT_HOOK_H_

#include <atomic>
#include <functional>

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
  // Runs `body` as one more thread, which ends with it, beside the one that calls. False: there are
  // no threads in this simulation. Blocks: never.
  virtual bool Run(std::function<void()> body) { return false; }
  // Others may have their turn here: comes after each access to memory that processes share.
  virtual void Pause() {}
  // Whether the caller is a thread of this simulation, one of several: it may block also in an
  // actor's turn, because others go on meanwhile.
  virtual bool IsOnThread() const { return false; }

  // The one installed on this thread, or null.
  static WaitHook* Current();
  // Installs `hook` on this thread (null: none) and returns the previous one.
  static WaitHook* Install(WaitHook* hook);
  // Whether what runs here is a thread, a real one or a simulation's, so that it may block. False
  // where the only thread of a simulation runs its actors: time stands still in their turns.
  static bool MayBlock();
  // Whether any thread has one; costs a load where Current costs a call.
  static bool IsAnyInstalled() { return installed_.load(std::memory_order_relaxed) != 0; }

 private:
  static inline std::atomic<int> installed_{0};
};

// The clock that deadlines of waits on this thread are measured with.
const Clock& WaitClock();

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_WAIT_HOOK_H_
