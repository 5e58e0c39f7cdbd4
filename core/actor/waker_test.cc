#include "core/actor/waker.h"

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

TEST(WakerTest, RemembersOneKick) {
  Waker waker;
  waker.Kick();
  waker.Kick();
  EXPECT_TRUE(waker.Park(absl::Seconds(30)));
  EXPECT_FALSE(waker.Park(absl::ZeroDuration()));
}

TEST(WakerTest, ParkEndsWhenItsTimeIsUp) {
  Waker waker;
  const absl::Time begin = absl::Now();
  while (absl::Now() < begin + absl::Milliseconds(2)) {
    EXPECT_FALSE(waker.Park(absl::Milliseconds(1)));
  }
}

TEST(WakerTest, NoKickIsLost) {
  std::atomic<uint32_t> ping_word{0};
  Waker ping(&ping_word);
  Waker pong;
  std::atomic<int> turns{0};
  constexpr int kTurns = 5000;
  std::thread other([&] {
    for (int i = 0; i < kTurns; ++i) {
      while (!ping.Park(absl::Seconds(30))) {
      }
      turns.fetch_add(1, std::memory_order_relaxed);
      pong.Kick();
    }
  });
  for (int i = 0; i < kTurns; ++i) {
    Waker(&ping_word).Kick();
    while (!pong.Park(absl::Seconds(30))) {
    }
    EXPECT_EQ(turns.load(std::memory_order_relaxed), i + 1);
  }
  other.join();
}

}  // namespace
}  // namespace pelton
