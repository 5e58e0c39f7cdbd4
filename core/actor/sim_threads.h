// Code that blocks, as threads of a simulation, all of them in one real thread.
#ifndef PELTON_CORE_ACTOR_SIM_THREADS_H_
#define PELTON_CORE_ACTOR_SIM_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "core/actor/sim_executor.h"
#include "core/actor/wait_hook.h"
#include "core/base/clock.h"

namespace pelton {

// Threads beside the actors of a SimExecutor, in its time. The executor's seed chooses who goes on:
// where a thread waits, and at each of its pauses (WaitHook::Pause), another one, or an actor, may
// have its turn. Each has a stack of its own, so that code which blocks runs unchanged.
//
// A thread can be killed at any of its pauses. Its stack is unwound then, as by an exception; what
// its destructors store while they do so, nobody but the test may look at.
// Threads: the one that made it. Owns: the stacks.
class SimThreads final : public WaitHook {
 public:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

  // Threads that belong together: they die together. Threads: a value. Owns: nothing.
  struct Process {
    // At which pause of its threads, from 1, it dies; kNever: at none.
    uint64_t dies_at = kNever;
    uint64_t pauses = 0;  // so far
    bool is_dead = false;
    // What the kernel does at once when the process dies, such as closing its sockets.
    std::function<void()> on_death = nullptr;
  };

  explicit SimThreads(SimExecutor& executor);
  // Kills the threads that have not ended.
  ~SimThreads() override;

  // Runs `body` as a thread of `process`, which outlives this. Those that it starts by Run are of
  // the same process.
  void Start(Process& process, std::function<void()> body);
  // Runs until all threads have ended. False: those that are left wait for what does not come in
  // minutes of virtual time.
  bool RunUntilAllEnd();

  // WaitHook. On a thread that is none of these (the test's), waiting runs these.
  bool WaitUntil(absl::FunctionRef<bool()> done, absl::Time deadline) override;
  const Clock& clock() const override { return executor_.clock(); }
  bool Run(std::function<void()> body) override;
  void Pause() override;
  bool IsOnThread() const override { return current_ != nullptr; }

 private:
  struct Thread;
  struct Killed {};  // thrown through what is killed

  static void Enter(unsigned high, unsigned low);
  static void RunBody(Thread& thread);
  bool CanGoOn(const Thread& thread) const;
  // Lets one go on, or time pass. False: nothing can happen until `deadline`.
  bool Step(absl::Time deadline);
  bool PassTime(absl::Time deadline);
  void SwitchTo(Thread& thread);
  void SwitchBack(Thread& thread, bool is_last);
  void Yield(Thread& thread);
  void RemoveEnded();

  SimExecutor& executor_;
  const uint64_t pauses_per_switch_;
  WaitHook* const previous_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Thread* current_ = nullptr;  // null: the test's
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_SIM_THREADS_H_
