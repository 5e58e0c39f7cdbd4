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
  std::vector<absl::Status> reasons;
};

TEST(RootTest, ALostRankFailsTheJobAtOnce) {
  RecordingSink sink;
  SimExecutor executor(/*seed=*/1);
  ActorRef<Root> root = Spawn<Root>(executor, {}, &sink);
  ASSERT_TRUE(
      root.Send(OrderReceived{Order::Kind::kAbort, absl::UnavailableError("rank 2 died")}).ok());
  executor.RunFor(absl::Milliseconds(1));
  ASSERT_EQ(sink.reasons.size(), 1u);
  EXPECT_EQ(sink.reasons[0].message(), "rank 2 died");
}

TEST(RootTest, ARankThatLeavesGivesTheOthersTimeToFinish) {
  RecordingSink sink;
  SimExecutor executor(/*seed=*/1);
  ActorRef<Root> root = Spawn<Root>(executor, {}, &sink);
  ASSERT_TRUE(
      root.Send(OrderReceived{Order::Kind::kPeerLeft, absl::AbortedError("rank 1 left")}).ok());
  executor.RunFor(Root::kGrace / 2);
  EXPECT_TRUE(sink.reasons.empty());
  executor.RunFor(Root::kGrace);
  ASSERT_EQ(sink.reasons.size(), 1u);
  EXPECT_EQ(sink.reasons[0].message(), "rank 1 left");
}

TEST(RootTest, AStoppedRootForgetsARankThatLeft) {
  RecordingSink sink;
  SimExecutor executor(/*seed=*/1);
  ActorRef<Root> root = Spawn<Root>(executor, {}, &sink);
  ASSERT_TRUE(
      root.Send(OrderReceived{Order::Kind::kPeerLeft, absl::AbortedError("rank 1 left")}).ok());
  executor.RunFor(Root::kGrace / 2);
  EXPECT_TRUE(executor.Shutdown(executor.clock().Now() + Root::kGrace).ok());
  EXPECT_TRUE(sink.reasons.empty());
}

}  // namespace
}  // namespace pelton
