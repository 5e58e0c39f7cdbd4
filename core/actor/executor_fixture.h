// The same test under the three executors.
#ifndef PELTON_CORE_ACTOR_EXECUTOR_FIXTURE_H_
#define PELTON_CORE_ACTOR_EXECUTOR_FIXTURE_H_

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "core/actor/executor.h"
#include "core/actor/pool_executor.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/thread_executor.h"
#include "core/actor/wait_hook.h"
#include "gtest/gtest.h"

namespace pelton {

// Runs `test` with a fresh executor of each kind: pools of one and three threads, a dedicated
// thread and simulations with many seeds. Waits in `test` (Await, StopAndWait) work under all of
// them.
inline void ForEachExecutor(absl::FunctionRef<void(Executor&)> test, uint64_t seeds = 50) {
  {
    SCOPED_TRACE("PoolExecutor with one thread");
    PoolExecutor executor(1);
    test(executor);
  }
  {
    SCOPED_TRACE("PoolExecutor with three threads");
    PoolExecutor executor(3);
    test(executor);
  }
  {
    SCOPED_TRACE("ThreadExecutor");
    ThreadExecutor executor;
    test(executor);
  }
  SCOPED_TRACE("SimExecutor");
  ForEachSeed(seeds, [&](uint64_t seed) {
    SimExecutor executor(seed);
    test(executor);
  });
}

// A deadline far enough for a busy machine.
inline absl::Time Soon() { return WaitClock().Now() + absl::Seconds(30); }

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_EXECUTOR_FIXTURE_H_
