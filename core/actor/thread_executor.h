// A dedicated thread for one actor or a few.
#ifndef PELTON_CORE_ACTOR_THREAD_EXECUTOR_H_
#define PELTON_CORE_ACTOR_THREAD_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "core/actor/backoff.h"
#include "core/actor/executor_base.h"
#include "core/actor/sync_policy.h"
#include "core/actor/thread_loop.h"
#include "core/actor/wait_hook.h"
#include "core/actor/waker.h"

namespace pelton {

// Runs its actors on a thread of its own. While one of them polls work in flight it alternates
// between messages and polls; without progress it spins for some hundred nanoseconds (unless
// threads outnumber cores), yields, and then parks until a message, a timer, a kick of its waker or
// the shortest MaxPark.
// Made by a thread of a simulation it is one of them itself, in the same time, and runs the same
// code.
// Threads: any. Owns: its thread.
class ThreadExecutor final : public internal::ExecutorBase {
 public:
  struct Options {
    // Shown by debuggers; at most 15 characters.
    std::string name = "pelton-actor";
    // A futex word, 0 at first, that peers kick too (it may lie in shared memory), or null.
    internal::RealSync::Atomic<uint32_t>* waker_word = nullptr;
    // Replaces `waker.Park(at_most)` while work is in flight; a kick of `waker` must end it.
    absl::AnyInvocable<void(Waker& waker, absl::Duration at_most)> park = nullptr;
    // Whether it is one of the threads that stop spinning when they outnumber the cores. Not so:
    // one that rests nearly always, and beside which the others should spin as they did.
    bool is_counted = true;
  };

  ThreadExecutor();
  explicit ThreadExecutor(Options options);
  // Shuts down within limits::kStopTimeout, if Shutdown was not called.
  ~ThreadExecutor() override;

  // What events from outside kick, so that a parked thread polls at once.
  Waker& waker() { return waker_; }

  const Clock& clock() const override { return clock_; }
  void Schedule(internal::ActorCell& cell) override;

  // For threads of a simulation, which share a real one: whose thread this one is from now on, and
  // was before; null: no executor's.
  static const ThreadExecutor* SwapCurrent(const ThreadExecutor* mine);

 private:
  void Run();
  void Park();
  bool WaitUntilEmpty(absl::Time deadline) override;
  void OnEarlierTimer() override { waker_.Kick(); }

  const Clock& clock_;
  Options options_;
  Waker waker_;
  internal::RealSync::Atomic<bool> exit_{false};
  internal::ThreadLoop loop_;
  std::optional<RuntimeThread> counted_;  // from here on, not from when the thread gets a core
  SideThread thread_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_THREAD_EXECUTOR_H_
