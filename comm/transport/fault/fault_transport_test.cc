#include "comm/transport/fault/fault_transport.h"

#include <vector>

#include "absl/time/clock.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/sim/sim_fabric.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Two simulated ranks, of which rank 0 has faults.
class FaultTransportTest : public testing::Test {
 protected:
  void Open(const FaultScript& script) {
    auto opened = fabric_.OpenAll(CommunicatorId(1), Group::World(WorldSize(2)));
    ASSERT_TRUE(opened.ok()) << opened.status();
    healthy_ = std::move((*opened)[1]);
    faulty_ = WithFaults(std::move((*opened)[0]), script);
  }

  SimFabric fabric_{WorldSize(2)};
  std::unique_ptr<Communicator> faulty_;
  std::unique_ptr<Communicator> healthy_;
};

TEST_F(FaultTransportTest, WithoutFaultsNothingChanges) {
  Open({});
  const auto barrier = Barrier(*faulty_);
  ASSERT_TRUE(barrier.ok() && Barrier(*healthy_).ok());
  EXPECT_EQ(Await(*faulty_, *barrier, absl::InfiniteFuture()), absl::OkStatus());
  EXPECT_EQ(faulty_->rank(), Rank(0));
  EXPECT_EQ(faulty_->world_size(), WorldSize(2));
  EXPECT_EQ(faulty_->id(), CommunicatorId(1));
}

TEST_F(FaultTransportTest, OneLaunchIsRefusedAndTheNextWorks) {
  Open({.fail_launch = 2});
  EXPECT_TRUE(Barrier(*faulty_).ok());
  EXPECT_EQ(Barrier(*faulty_).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Barrier(*faulty_).ok());
}

TEST_F(FaultTransportTest, ABrokenConnectionReachesThePeer) {
  Open({.kill_launch = 2});
  ASSERT_TRUE(Barrier(*faulty_).ok() && Barrier(*healthy_).ok());
  const auto pending = Barrier(*healthy_);
  ASSERT_TRUE(pending.ok());
  const absl::Status broken = Barrier(*faulty_).status();
  EXPECT_EQ(broken, absl::UnavailableError("injected fault: the connection broke at launch 2"));
  EXPECT_EQ(Barrier(*faulty_).status(), broken);
  EXPECT_EQ(
      Await(*healthy_, *pending, absl::InfiniteFuture()),
      absl::UnavailableError("rank 0 aborted: injected fault: the connection broke at launch 2"));
}

// A Wake that is lost costs time, not the result: Park has its own end.
TEST_F(FaultTransportTest, ALostWakeLeavesTheParkToItsDeadline) {
  Open({.drop_wake = 1});
  const absl::Duration span = absl::Milliseconds(20);
  bool slept = false;  // once in five: a Park may end for no reason, but not each time
  for (int i = 0; i < 5 && !slept; ++i) {
    const absl::Time begin = absl::Now();
    faulty_->Wake();
    faulty_->Park(begin + span);
    slept = absl::Now() - begin >= span;
  }
  EXPECT_TRUE(slept);
}

TEST_F(FaultTransportTest, SkippedProgressDelaysButCompletes) {
  Open({.seed = 3, .skip_progress = 0.9});
  for (int i = 0; i < 20; ++i) {
    const auto barrier = Barrier(*faulty_);
    ASSERT_TRUE(barrier.ok() && Barrier(*healthy_).ok());
    EXPECT_EQ(Await(*faulty_, *barrier, absl::Now() + absl::Minutes(1)), absl::OkStatus());
  }
}

TEST(FaultDiceTest, DrawsRepeatFromTheSeedAndDifferByStream) {
  const FaultScript script{.seed = 5, .skip_progress = 0.5};
  FaultDice first(script, 1), again(script, 1), other(script, 2);
  int skipped = 0, differing = 0;
  for (int i = 0; i < 1000; ++i) {
    const bool skips = first.SkipsProgress();
    EXPECT_EQ(skips, again.SkipsProgress());
    skipped += skips ? 1 : 0;
    differing += skips != other.SkipsProgress() ? 1 : 0;
  }
  EXPECT_NEAR(skipped, 500, 100);
  EXPECT_NEAR(differing, 500, 100);
}

TEST(FaultTransportOpenTest, WrapsWhatItOpens) {
  SimFabric fabric(WorldSize(1));
  FaultTransport transport(fabric.MakeTransport(Rank(0)), {.fail_launch = 1});
  auto opened = transport.Open(CommunicatorId(1), Group::World(WorldSize(1)), absl::Now());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(Barrier(**opened).status().code(), absl::StatusCode::kResourceExhausted);
  transport.Abort(absl::CancelledError("over"));
  EXPECT_EQ(Barrier(**opened).status(), absl::CancelledError("over"));
}

}  // namespace
}  // namespace pelton
