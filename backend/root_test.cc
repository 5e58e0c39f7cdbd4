#include "backend/root.h"

#include <vector>

#include "core/actor/sim_executor.h"
#include "core/actor/spawn.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

class RecordingSink final : public FailureSink {
 public:
  void Fail(const absl::Status& reason) override { reasons.push_back(reason); }
  void LoseMember(Rank rank, const absl::Status& reason) override {
    left.push_back(rank);
    reasons.push_back(reason);
  }
  void TellOthers(const absl::Status& reason) override { told.push_back(reason); }
  std::vector<absl::Status> reasons;
  std::vector<Rank> left;
  std::vector<absl::Status> told;
};

TEST(RootTest, ALostRankFailsTheJobAtOnce) {
  RecordingSink sink;
  SimExecutor executor(/*seed=*/1);
  ActorRef<Root> root = Spawn<Root>(executor, {}, &sink);
  ASSERT_TRUE(
      root.Send(OrderReceived{Order::Kind::kAbort, Rank(2), absl::UnavailableError("rank 2 died")})
          .ok());
  executor.RunFor(absl::Milliseconds(1));
  ASSERT_EQ(sink.reasons.size(), 1u);
  EXPECT_EQ(sink.reasons[0].message(), "rank 2 died");
}

TEST(RootTest, ARankThatLeavesGivesTheOthersTimeToFinish) {
  RecordingSink sink;
  SimExecutor executor(/*seed=*/1);
  ActorRef<Root> root = Spawn<Root>(executor, {}, &sink);
  ASSERT_TRUE(
      root.Send(OrderReceived{Order::Kind::kPeerLeft, Rank(1), absl::AbortedError("rank 1 left")})
          .ok());
  executor.RunFor(Root::kGrace / 2);
  EXPECT_TRUE(sink.reasons.empty());
  executor.RunFor(Root::kGrace);
  ASSERT_EQ(sink.reasons.size(), 1u);
  EXPECT_EQ(sink.reasons[0].message(), "rank 1 left");
  EXPECT_EQ(sink.left, std::vector<Rank>{Rank(1)});
}

TEST(RootTest, AFailureHereIsToldToTheOthersEvenByOneThatStops) {
  RecordingSink sink;
  SimExecutor executor(/*seed=*/1);
  ActorRef<Root> root = Spawn<Root>(executor, {}, &sink);
  ASSERT_TRUE(root.Send(FailureHere{absl::DataLossError("the disk is full")}).ok());
  EXPECT_TRUE(executor.Shutdown(executor.clock().Now() + Root::kGrace).ok());
  ASSERT_EQ(sink.told.size(), 1u);
  EXPECT_EQ(sink.told[0].message(), "the disk is full");
}

TEST(RootTest, AStoppedRootForgetsARankThatLeft) {
  RecordingSink sink;
  SimExecutor executor(/*seed=*/1);
  ActorRef<Root> root = Spawn<Root>(executor, {}, &sink);
  ASSERT_TRUE(
      root.Send(OrderReceived{Order::Kind::kPeerLeft, Rank(1), absl::AbortedError("rank 1 left")})
          .ok());
  executor.RunFor(Root::kGrace / 2);
  EXPECT_TRUE(executor.Shutdown(executor.clock().Now() + Root::kGrace).ok());
  EXPECT_TRUE(sink.reasons.empty());
}

}  // namespace
}  // namespace pelton
