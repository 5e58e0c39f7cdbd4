// Deadlines while the machine's clock is stepped.
#include "core/base/clock.h"

#include <thread>

#include "absl/time/clock.h"
#include "core/base/sync.h"
#include "core/base/test_wall_clock_step.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr absl::Duration kStep = absl::Hours(1);

TEST(ClockTest, AStepOfTheWallClockIsNoTimeThatPasses) {
  for (const absl::Duration step : {kStep, -kStep}) {
    const absl::Time real = Clock::Real().Now();
    const absl::Time wall = absl::Now();
    const WallClockStep stepped(step);
    EXPECT_GT(absl::AbsDuration(absl::Now() - wall), kStep / 2);
    EXPECT_GE(Clock::Real().Now(), real);
    EXPECT_LT(Clock::Real().Now() - real, kStep / 2);
  }
}

TEST(ClockTest, ToWallTimeFollowsTheWallClock) {
  const WallClockStep stepped(kStep);
  const absl::Duration off = ToWallTime(Clock::Real().Now() + absl::Minutes(1)) - absl::Now();
  EXPECT_LT(absl::AbsDuration(off - absl::Minutes(1)), absl::Seconds(30));
}

TEST(SyncTest, AStepOfTheWallClockEndsNoWait) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  const absl::Time deadline = Clock::Real().Now() + absl::Minutes(5);
  const WallClockStep stepped(kStep);
  std::thread setter([&] {
    MutexLock lock(&mutex);
    ready = true;
    changed.SignalAll();
  });
  {
    MutexLock lock(&mutex);
    while (!ready) ASSERT_FALSE(changed.WaitWithDeadline(&mutex, deadline));
  }
  setter.join();
}

TEST(SyncTest, AWaitEndsAtItsDeadlineThoughTheWallClockWasSetBack) {
  Mutex mutex;
  CondVar never;
  const absl::Time deadline = Clock::Real().Now() + absl::Milliseconds(20);
  const WallClockStep stepped(-kStep);
  MutexLock lock(&mutex);
  while (!never.WaitWithDeadline(&mutex, deadline)) {
  }
  EXPECT_GE(Clock::Real().Now(), deadline);
}

TEST(SyncTest, ASignalIsNoTimeOut) {
  Mutex mutex;
  CondVar changed;
  int turn = 0;
  std::thread other([&] {
    MutexLock lock(&mutex);
    for (int i = 0; i < 1'000; ++i) {
      while (turn % 2 == 0) changed.Wait(&mutex);
      ++turn;
      changed.Signal();
    }
  });
  {
    MutexLock lock(&mutex);
    for (int i = 0; i < 1'000; ++i) {
      ++turn;
      changed.Signal();
      while (turn % 2 == 1) changed.Wait(&mutex);
    }
  }
  other.join();
  EXPECT_EQ(turn, 2'000);
}

}  // namespace
}  // namespace pelton
