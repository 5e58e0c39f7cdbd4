#include "torch_bindings/csrc/averaging_control.h"

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "gtest/gtest.h"

namespace pelton::torch_bindings {
namespace {

absl::Time In(absl::Duration time) { return Clock::Real().Now() + time; }

void OnAnotherThread(const std::function<void()>& body) { std::thread(body).join(); }

TEST(AveragingControlTest, ItsLockIsOneThreads) {
  AveragingControl control;
  EXPECT_FALSE(control.held_by_this_thread());
  ASSERT_TRUE(control.LockWeights(In(absl::Minutes(1))).ok());
  EXPECT_TRUE(control.held_by_this_thread());
  EXPECT_EQ(control.LockWeights(In(absl::Minutes(1))).code(), absl::StatusCode::kFailedPrecondition)
      << "it would wait for itself";
  OnAnotherThread([&control] {
    EXPECT_FALSE(control.held_by_this_thread());
    EXPECT_EQ(control.LockWeights(In(absl::Milliseconds(5))).code(),
              absl::StatusCode::kDeadlineExceeded);
  });
  EXPECT_TRUE(control.held_by_this_thread()) << "who came too late has taken it over";
}

// A trainer locks, and a hook on autograd's thread unlocks.
TEST(AveragingControlTest, AnyThreadMayUnlock) {
  AveragingControl control;
  ASSERT_TRUE(control.LockWeights(In(absl::Minutes(1))).ok());
  OnAnotherThread([&control] { EXPECT_TRUE(control.UnlockWeights().ok()); });
  EXPECT_FALSE(control.held_by_this_thread());
  EXPECT_TRUE(control.LockWeights(In(absl::Minutes(1))).ok());
  EXPECT_TRUE(control.UnlockWeights().ok());
  EXPECT_EQ(control.UnlockWeights().code(), absl::StatusCode::kFailedPrecondition)
      << "a second unlock would free somebody else's lock";
}

TEST(AveragingControlTest, WhoWaitsGetsTheLockOnceItIsFree) {
  AveragingControl control;
  ASSERT_TRUE(control.LockWeights(In(absl::Minutes(1))).ok());
  std::thread waiter([&control] {
    EXPECT_TRUE(control.LockWeights(In(absl::Minutes(1))).ok());
    EXPECT_TRUE(control.held_by_this_thread());
    EXPECT_TRUE(control.UnlockWeights().ok());
  });
  EXPECT_TRUE(control.UnlockWeights().ok());
  waiter.join();
}

TEST(AveragingControlTest, AWishToStopCountsOnceTheRanksHaveAgreed) {
  AveragingControl control;
  control.Abort();
  EXPECT_TRUE(control.wants_stop());
  EXPECT_TRUE(control.is_running());
  control.set_running(false);
  EXPECT_FALSE(control.is_running());
  control.Reset();
  EXPECT_FALSE(control.wants_stop());
  EXPECT_TRUE(control.is_running());
}

}  // namespace
}  // namespace pelton::torch_bindings
