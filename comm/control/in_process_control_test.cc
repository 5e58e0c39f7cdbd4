#include "comm/control/in_process_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "comm/control/conformance_test.h"
#include "core/base/clock.h"

namespace pelton {
namespace {

using testing::HasSubstr;

// Threads: any. Owns: the coordinator.
class InProcessFixture final : public ControlFixture {
 public:
  std::unique_ptr<Control> MakeControl() override { return coordinator_->MakeControl(); }
  absl::Status AwaitEmpty(absl::Time deadline) override {
    // Nothing of a rank outlasts the call that ends it.
    if (coordinator_->rank_count() == 0) return absl::OkStatus();
    return absl::DeadlineExceededError("ranks remain");
  }

 private:
  std::unique_ptr<InProcessCoordinator> coordinator_ = InProcessCoordinator::Make(Clock::Real());
};

INSTANTIATE_TEST_SUITE_P(InProcess, ControlConformanceTest,
                         testing::Values([]() -> std::unique_ptr<ControlFixture> {
                           return std::make_unique<InProcessFixture>();
                         }));

// Time that the test moves. Threads: any. Owns: nothing.
class VirtualClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::Seconds(seconds_.load(std::memory_order_relaxed));
  }
  void Advance(int seconds) { seconds_.fetch_add(seconds, std::memory_order_relaxed); }

 private:
  std::atomic<int> seconds_{0};
};

TEST(InProcessControlTest, DeadlinesAreTheClocks) {
  VirtualClock clock;
  const auto coordinator = InProcessCoordinator::Make(clock);
  const auto control = coordinator->MakeControl();
  OnEveryRank(2, [&](int thread) {
    if (thread == 0) {
      const absl::Time deadline = absl::UnixEpoch() + absl::Hours(1);
      const absl::Status status = control->Join(MakeJoin(0, 2), deadline).status();
      EXPECT_EQ(status.message(), "rank 0: job 'job': 1 of 2 ranks joined within 1h; missing: 1");
      return;
    }
    while (coordinator->rank_count() == 0) std::this_thread::yield();
    clock.Advance(3600);
    coordinator->Tick();
  });
}

TEST(InProcessControlTest, WorldOfOneThreadHearsOfALossAtOnce) {
  VirtualClock clock;
  const auto coordinator = InProcessCoordinator::Make(clock);
  const Controls world = coordinator->MakeWorld("job", WorldSize(3));
  OrderLog zero(world[0].get()), one(world[1].get()), two(world[2].get());
  world[1]->SetRound(Round(4));
  clock.Advance(2);
  coordinator->Lose("job", Rank(1));
  ASSERT_EQ(zero.size(), 1);
  EXPECT_EQ(zero.Await(0).reason.message(),
            "job 'job': rank 1 (pid 0) died: its connection to the coordinator broke; last heard "
            "2s before, in round 4");
  EXPECT_EQ(two.size(), 1);
  // The lost rank, should it live, is told as well.
  EXPECT_EQ(one.size(), 1);
  EXPECT_EQ(coordinator->rank_count(), 2);
}

TEST(InProcessControlTest, NobodyIsSilent) {
  VirtualClock clock;
  const auto coordinator = InProcessCoordinator::Make(clock);
  const Controls world = coordinator->MakeWorld("job", WorldSize(2));
  clock.Advance(1 << 20);
  coordinator->Tick();
  EXPECT_EQ(coordinator->rank_count(), 2);
}

}  // namespace
}  // namespace pelton
