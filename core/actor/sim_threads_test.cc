#include "core/actor/sim_threads.h"

#include <atomic>
#include <utility>
#include <vector>

#include "core/actor/promise.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/wait_hook.h"
#include "core/actor/waker.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// A flag of two threads that each look at the other's and then go in: by the order of their steps
// both, one or none of them does.
class DoorWorld {
 public:
  explicit DoorWorld(uint64_t seed) : executor_(seed), threads_(executor_) {}

  int Run() {
    for (int side = 0; side < 2; ++side) {
      threads_.Start(process_, [this, side] {
        const bool is_other_in = is_in_[1 - side];
        threads_.Pause();
        is_in_[side] = !is_other_in;
      });
    }
    EXPECT_TRUE(threads_.RunUntilAllEnd());
    return (is_in_[0] ? 1 : 0) + (is_in_[1] ? 1 : 0);
  }

 private:
  SimThreads::Process process_;
  SimExecutor executor_;
  SimThreads threads_;
  bool is_in_[2] = {false, false};
};

TEST(SimThreadsTest, SeedsMeetEveryOrderAndRepeat) {
  std::vector<int> counts(3);
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const int in = DoorWorld(seed).Run();
    ++counts[static_cast<size_t>(in)];
    EXPECT_EQ(DoorWorld(seed).Run(), in) << "seed " << seed;
  }
  EXPECT_EQ(counts[0], 0);
  EXPECT_GT(counts[1], 0);
  EXPECT_GT(counts[2], 0);
}

TEST(SimThreadsTest, AParkEndsByAKickAtTheSameTimeOrByItsDeadline) {
  ForEachSeed(50, [](uint64_t seed) {
    SimThreads::Process process;
    SimExecutor executor(seed);
    SimThreads threads(executor);
    const absl::Time start = executor.Now();
    Waker waker;
    threads.Start(process, [&] {
      EXPECT_TRUE(waker.Park(absl::Seconds(5)));
      EXPECT_EQ(executor.Now(), start);
      EXPECT_FALSE(waker.Park(absl::Seconds(5)));
      EXPECT_EQ(executor.Now(), start + absl::Seconds(5));
    });
    threads.Start(process, [&] { waker.Kick(); });
    EXPECT_TRUE(threads.RunUntilAllEnd());
  });
}

TEST(SimThreadsTest, AThreadOfAThreadIsJoined) {
  SimThreads::Process process;
  SimExecutor executor(1);
  SimThreads threads(executor);
  bool has_run = false;
  threads.Start(process, [&] {
    SideThread side([&] {
      threads.Pause();
      has_run = true;
    });
    EXPECT_TRUE(side.joinable());
    side.Join();
    EXPECT_TRUE(has_run);
    EXPECT_FALSE(side.joinable());
  });
  EXPECT_TRUE(threads.RunUntilAllEnd());
}

// Threads: one. Owns: nothing.
struct Mark {
  ~Mark() { *is_gone = true; }
  bool* is_gone;
};

TEST(SimThreadsTest, ADeathUnwindsAllThreadsOfItsProcessAndNoOther) {
  ForEachSeed(50, [](uint64_t seed) {
    SimThreads::Process dies;
    SimThreads::Process lives;
    SimExecutor executor(seed);
    SimThreads threads(executor);
    dies.dies_at = 3;
    int deaths = 0;
    dies.on_death = [&] { ++deaths; };
    bool has_begun = false;
    bool is_gone = false;
    bool has_waited = false;
    int pauses = 0;
    threads.Start(dies, [&] {
      has_begun = true;
      const Mark mark{&is_gone};
      threads.WaitUntil([] { return false; }, absl::InfiniteFuture());
      ADD_FAILURE() << "it lives on";
    });
    threads.Start(dies, [&] {
      for (int i = 0; i < 5; ++i) {
        threads.Pause();
        ++pauses;
      }
    });
    threads.Start(lives, [&] {
      has_waited =
          threads.WaitUntil([&] { return deaths == 1; }, executor.Now() + absl::Seconds(1));
    });
    EXPECT_TRUE(threads.RunUntilAllEnd());
    EXPECT_EQ(deaths, 1);
    EXPECT_LT(pauses, 3);
    EXPECT_TRUE(has_waited);
    EXPECT_EQ(is_gone, has_begun);
  });
}

// As where each has borrowed an actor.
TEST(SimThreadsTest, WhatAThreadDropsInATurnIsAnsweredWithThatTurn) {
  ForEachSeed(50, [](uint64_t seed) {
    SimThreads::Process process;
    SimExecutor executor(seed);
    SimThreads threads(executor);
    for (const char* name : {"one", "other"}) {
      threads.Start(process, [&threads, name] {
        auto [promise, future] = MakePromise<int>();
        {
          internal::DroppedPromises turn;
          threads.Pause();
          { const Promise<int> dropped = std::move(promise); }
          threads.Pause();
          EXPECT_FALSE(future.ready());
          turn.Answer(name);
        }
        EXPECT_EQ(std::move(future).Take().status(), absl::AbortedError(name));
      });
    }
    EXPECT_TRUE(threads.RunUntilAllEnd());
  });
}

TEST(SimThreadsTest, WhoWaitsForWhatDoesNotComeIsTold) {
  bool is_gone = false;
  {
    SimThreads::Process process;
    SimExecutor executor(1);
    SimThreads threads(executor);
    threads.Start(process, [&] {
      const Mark mark{&is_gone};
      threads.WaitUntil([] { return false; }, absl::InfiniteFuture());
    });
    EXPECT_FALSE(threads.RunUntilAllEnd());
    EXPECT_FALSE(is_gone);
  }
  EXPECT_TRUE(is_gone);  // with `threads`
}

}  // namespace
}  // namespace pelton
