// The seam that lets code which blocks a thread run under a simulation unchanged, and threads that
// a simulation can run in its own.
#ifndef PELTON_CORE_ACTOR_WAIT_HOOK_H_
#define PELTON_CORE_ACTOR_WAIT_HOOK_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

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

// A thread that a simulation can run in its own. As std::thread, for code that blocks in calls of
// the kernel or of another library, so that it can be no actor. Where the thread that makes it is a
// simulation's, so is this one. Threads: the one that made it. Owns: the thread, which must be
// joined before this goes.
class SideThread {
 public:
  SideThread() = default;
  // `name` is shown by debuggers, its first 15 characters; "": that of the thread that makes it.
  explicit SideThread(std::function<void()> body, const std::string& name = "");

  bool joinable() const { return thread_.joinable() || is_simulated(); }
  bool is_simulated() const { return has_ended_ != nullptr; }
  // Blocks: until the body has returned.
  void Join();

 private:
  std::thread thread_;
  // Of a simulated one; null else. Shared: the body may outlast this in a simulation that ends.
  std::shared_ptr<bool> has_ended_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_WAIT_HOOK_H_
