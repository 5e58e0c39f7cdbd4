#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/sync.h"
#include "gtest/gtest.h"

// A turn that an assertion has taken, or that another thread gives back, is beyond the analysis.
#ifdef __clang__
#pragma clang diagnostic ignored "-Wthread-safety-analysis"
#endif

namespace pelton {
namespace {

absl::Time In(absl::Duration duration) { return Clock::Real().Now() + duration; }

TEST(TurnTest, EndsAWaitAtItsDeadline) {
  Turn turn;
  ASSERT_TRUE(turn.Take(absl::InfinitePast()));
  EXPECT_FALSE(turn.Take(absl::InfinitePast()));
  EXPECT_FALSE(turn.Take(In(absl::Milliseconds(5))));
  turn.GiveBack();
  EXPECT_TRUE(turn.Take(absl::InfinitePast()));
  turn.GiveBack();
}

// A turn that was slept through shows as a thread that ends at its deadline.
TEST(TurnTest, ThreadsHaveItOneAfterTheOther) {
  Turn turn;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int repetition = 0; repetition < 5000; ++repetition) {
        if (!turn.Take(In(absl::Seconds(60)))) return;
        const TurnHolder holder(&turn);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 20000);
}

TEST(TurnTest, IsGivenBackByAnotherThread) {
  Turn turn;
  ASSERT_TRUE(turn.Take(absl::InfinitePast()));
  std::thread other([&turn] { turn.GiveBack(); });
  EXPECT_TRUE(turn.Take(In(absl::Seconds(60))));
  other.join();
  turn.GiveBack();
}

}  // namespace
}  // namespace pelton
