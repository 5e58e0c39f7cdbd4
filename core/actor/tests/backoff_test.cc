#include "core/actor/backoff.h"

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Threads: one. Owns: its time.
class SetClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Pass(absl::Duration duration) { now_ += duration; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

TEST(BackoffTest, LooksYieldsAndParksUntilThereIsWork) {
  Backoff backoff({.looks = 2, .yields = 1});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(backoff.OnIdle(), Backoff::Next::kLook);
    EXPECT_EQ(backoff.OnIdle(), Backoff::Next::kLook);
    EXPECT_EQ(backoff.OnIdle(), Backoff::Next::kYield);
    EXPECT_EQ(backoff.OnIdle(), Backoff::Next::kPark);
    EXPECT_EQ(backoff.OnIdle(), Backoff::Next::kPark);
    backoff.Reset();
  }
}

TEST(BackoffTest, AWaitWhoseLooksOnlyLookTakesTheSameSteps) {
  Backoff backoff({.looks = 2, .yields = 1});
  EXPECT_TRUE(backoff.Spin());
  EXPECT_TRUE(backoff.Spin());
  EXPECT_FALSE(backoff.Spin()) << "it does not yield";
  EXPECT_TRUE(backoff.Pause());
  EXPECT_FALSE(backoff.Pause());
  EXPECT_EQ(backoff.OnIdle(), Backoff::Next::kPark);
}

// Ranks that outnumber the cores need the core that is waited on.
TEST(BackoffTest, LooksOnlyWhileThereIsACoreForEach) {
  SetProcessesOnHost(1 << 20);
  Backoff backoff;
  EXPECT_FALSE(backoff.Spin());
  for (int i = 0; i < waits::kForThread.yields; ++i) {
    EXPECT_EQ(backoff.OnIdle(), Backoff::Next::kYield);
  }
  EXPECT_EQ(backoff.OnIdle(), Backoff::Next::kPark);
  SetProcessesOnHost(1);
}

TEST(LongLookTest, EndsOnceItHasLasted) {
  SetClock clock;
  LongLook look(absl::Microseconds(50));
  EXPECT_TRUE(look.GoesOn(clock));
  clock.Pass(absl::Microseconds(49));
  EXPECT_TRUE(look.GoesOn(clock));
  clock.Pass(absl::Microseconds(1));
  EXPECT_FALSE(look.GoesOn(clock));
  clock.Pass(absl::Seconds(1));
  EXPECT_FALSE(look.GoesOn(clock)) << "a thread that was woken for nothing sleeps again";
  look.Reset();
  EXPECT_TRUE(look.GoesOn(clock));
}

TEST(LongLookTest, IsNoneWhereNobodyAsksForIt) {
  LongLook look(absl::ZeroDuration());
  EXPECT_FALSE(look.GoesOn());
}

}  // namespace
}  // namespace pelton
