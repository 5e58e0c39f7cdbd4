// A dedicated thread for one actor or a few.
#ifndef PELTON_CORE_ACTOR_THREAD_EXECUTOR_H_
#define PELTON_CORE_ACTOR_THREAD_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "core/actor/backoff.h"
#include "core/actor/executor_base.h"
#include "core/actor/thread_loop.h"
#include "core/actor/waker.h"

namespace pelton {

// Runs its actors on a thread of its own. While one of them polls work in flight it alternates
// between messages and polls; without progress it spins for some hundred nanoseconds (unless
// threads outnumber cores), yields, and then parks until a message, a timer, a kick of its waker or
// the shortest MaxPark.
// Threads: any. Owns: its thread.
class ThreadExecutor final : public internal::ExecutorBase {
 public:
  struct Options {
    // Shown by debuggers; at most 15 characters.
    std::string name = "pelton-actor";
    // A futex word, 0 at first, that peers kick too (it may lie in shared memory), or null.
    std::atomic<uint32_t>* waker_word = nullptr;
    // Replaces `waker.Park(at_most)` while work is in flight; a kick of `waker` must end it.
    absl::AnyInvocable<void(Waker& waker, absl::Duration at_most)> park = nullptr;
  };

  ThreadExecutor();
  explicit ThreadExecutor(Options options);
  // Shuts down within limits::kStopTimeout, if Shutdown was not called.
  ~ThreadExecutor() override;

  // What events from outside kick, so that a parked thread polls at once.
  Waker& waker() { return waker_; }

  void Schedule(internal::ActorCell& cell) override;

 private:
  void Run();
  void Park();
  void OnEarlierTimer() override { waker_.Kick(); }

  Options options_;
  Waker waker_;
  std::atomic<bool> exit_{false};
  internal::ThreadLoop loop_;
  const RuntimeThread counted_;  // from here on, not from when the thread gets a core
  std::thread thread_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_THREAD_EXECUTOR_H_
