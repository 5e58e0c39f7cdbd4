#include "core/pipeline/channel.h"

#include <algorithm>
#include <cfenv>
#include <memory>
#include <utility>
#include <vector>

#include "core/pipeline/fake_world.h"
#include "core/pipeline/standard_stages.h"
#include "core/plan/bucket.h"
#include "core/plan/plan.h"
#include "core/plan/ready_tracker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

Plan ThreeBuckets() {
  std::vector<TensorSpec> tensors;
  for (const char* name : {"a", "b", "c"}) tensors.push_back({name, DType::kFloat32, 16, {}});
  PlanOptions options;
  options.bucket_size_bytes = 64;
  return *Plan::Build(std::move(tensors), options);
}

// Fails in Advance, with an operation in flight.
// Threads: one. Owns: nothing.
class FailingStage final : public Stage {
 public:
  absl::string_view name() const override { return "failing"; }
  absl::Status Start(BucketRun& run, StageState*) override {
    Operation operation;
    operation.kind = OperationKind::kBarrier;
    return run.Launch(operation).status();
  }
  absl::StatusOr<bool> Advance(BucketRun&, StageState*) override {
    return absl::InternalError("a stage has failed");
  }
};

// Tells how it would round, and launches nothing.
// Threads: one. Owns: nothing.
class RoundingStage final : public Stage {
 public:
  explicit RoundingStage(std::vector<bool>& rounds_up) : rounds_up_(rounds_up) {}
  absl::string_view name() const override { return "rounding"; }
  absl::Status Start(BucketRun&, StageState*) override {
    rounds_up_.push_back(RoundsUp());
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Advance(BucketRun&, StageState*) override {
    rounds_up_.push_back(RoundsUp());
    return true;
  }

 private:
  static bool RoundsUp() {
    volatile float one = 1;
    volatile float little = 1e-10F;
    return one + little > 1;
  }

  std::vector<bool>& rounds_up_;
};

// A barrier, then another.
// Threads: one. Owns: the operations of the round.
class TwoBarriersStage final : public Stage {
 public:
  absl::string_view name() const override { return "two barriers"; }
  absl::Status Start(BucketRun&, StageState*) override {
    batch_.Add(Operation{});
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override {
    const absl::StatusOr<bool> done = batch_.Advance(run);
    if (!done.ok() || !*done || std::exchange(second_, true)) return done;
    batch_.Clear();
    batch_.Add(Operation{});
    return batch_.Advance(run);
  }

 private:
  OperationBatch batch_;
  bool second_ = false;
};

// Threads: one. Owns: a channel of rank 0 of two ranks, and what it needs.
class ChannelTest : public ::testing::Test, public ReadySink, public CompletionSink {
 protected:
  struct Done {
    BucketId bucket;
    absl::Status status;
  };
  void OnBucketReady(BucketId, Round) override {}
  void OnBucketComplete(BucketId bucket, Round, const absl::Status& status) override {
    done_.push_back({bucket, status});
  }

  Pipeline& AddPipeline(int32_t bucket, std::unique_ptr<Stage> stage) {
    PipelineSpec spec;
    spec.stages.push_back(std::move(stage));
    pipelines_.push_back(std::make_unique<Pipeline>(
        *Pipeline::Build(std::move(spec), plan_.bucket(BucketId(bucket)))));
    return *pipelines_.back();
  }
  void Push(int32_t bucket, std::unique_ptr<Stage> stage) {
    channel_->Push(AddPipeline(bucket, std::move(stage)),
                   BucketRun(plan_, plan_.bucket(BucketId(bucket)), *storage_, tracker_,
                             world_.runner(0), Round(1)),
                   BucketCompletion(*this, BucketId(bucket), Round(1)));
  }
  void PushSum(int32_t bucket) { Push(bucket, MakeAllReduceStage(ReduceOp::kSum)); }
  // The other rank launches the same.
  void PeerLaunchesAll() {
    HostStream stream;
    FakeRunner& peer = world_.runner(1);
    while (peer.launches().size() < world_.runner(0).launches().size()) {
      ASSERT_TRUE(peer.Launch(world_.runner(0).launches()[peer.launches().size()], stream).ok());
    }
    peer.Progress();
  }

  const Plan plan_ = ThreeBuckets();
  std::unique_ptr<BucketStorage> storage_ = *BucketStorage::Create(plan_, "test");
  ReadyTracker tracker_{plan_, *storage_, *this, Round(1)};
  FakeWorld world_{2};
  std::vector<std::unique_ptr<Pipeline>> pipelines_;
  std::unique_ptr<Channel> channel_ = std::make_unique<Channel>(world_.runner(0), Clock::Real());
  std::vector<Done> done_;
};

TEST_F(ChannelTest, LaunchingTheNextOperationIsAMove) {
  Push(0, std::make_unique<TwoBarriersStage>());
  channel_->Advance();
  EXPECT_FALSE(channel_->Advance());
  PeerLaunchesAll();
  EXPECT_TRUE(channel_->Advance());
  EXPECT_TRUE(done_.empty());
  EXPECT_FALSE(channel_->Advance());
  PeerLaunchesAll();
  EXPECT_TRUE(channel_->Advance());
  EXPECT_EQ(done_.size(), 1u);
}

TEST_F(ChannelTest, AStageComputesAlikeOnWhicheverThread) {
  std::vector<bool> rounds_up;
  Push(0, std::make_unique<RoundingStage>(rounds_up));
  std::fesetround(FE_UPWARD);
  channel_->Advance();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(rounds_up, (std::vector<bool>{false, false}));
}

TEST_F(ChannelTest, ABucketThatHasMoreToLaunchKeepsTheNextOneWaiting) {
  Push(1, std::make_unique<TwoBarriersStage>());
  PushSum(0);
  EXPECT_TRUE(channel_->Advance());
  EXPECT_FALSE(channel_->Advance());
  EXPECT_EQ(world_.runner(0).launches().size(), 1u);
  EXPECT_THAT(channel_->DescribeCurrent(), HasSubstr("bucket 1 (b), stage 'two barriers'"));
  PeerLaunchesAll();
  EXPECT_TRUE(channel_->Advance());
  EXPECT_EQ(world_.runner(0).launches().size(), 2u);
  PeerLaunchesAll();
  EXPECT_TRUE(channel_->Advance());
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_EQ(done_[0].bucket, BucketId(1));
  PeerLaunchesAll();
  channel_->Advance();
  ASSERT_EQ(done_.size(), 2u);
  EXPECT_TRUE(done_[1].status.ok());
  EXPECT_TRUE(channel_->idle());
}

TEST_F(ChannelTest, TheNextBucketLaunchesBehindTheLastOperationOfTheOneBefore) {
  for (int32_t bucket : {1, 0, 2}) PushSum(bucket);
  EXPECT_TRUE(channel_->Advance());
  EXPECT_FALSE(channel_->Advance());
  ASSERT_EQ(world_.runner(0).launches().size(), 2u);  // two at once, the third waits
  EXPECT_EQ(world_.runner(0).launches()[0].bucket, BucketId(1));
  EXPECT_EQ(world_.runner(0).launches()[1].bucket, BucketId(0));
  EXPECT_TRUE(channel_->IsInFlight(BucketId(1)));
  EXPECT_TRUE(channel_->IsInFlight(BucketId(0)));
  EXPECT_FALSE(channel_->IsInFlight(BucketId(2)));
  EXPECT_THAT(channel_->DescribeCurrent(), HasSubstr("bucket 1 (b), stage 'allreduce'"));
  PeerLaunchesAll();
  channel_->Advance();
  PeerLaunchesAll();
  channel_->Advance();
  ASSERT_EQ(done_.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(done_[i].status.ok()) << done_[i].status;
  EXPECT_EQ(done_[0].bucket, BucketId(1));
  EXPECT_EQ(done_[1].bucket, BucketId(0));
  EXPECT_EQ(done_[2].bucket, BucketId(2));
  EXPECT_TRUE(channel_->idle());
}

// The other rank has not launched the barrier, and never will.
TEST_F(ChannelTest, AFailedStageEndsItsOperationsAndTellsThePeersAtOnce) {
  Push(0, std::make_unique<FailingStage>());
  channel_->Advance();
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_TRUE(world_.runner(0).Query({1}).done);  // OWN-1
  EXPECT_THAT(done_[0].status.ToString(), HasSubstr("bucket 0 (c), barrier"));
  EXPECT_THAT(done_[0].status.ToString(), HasSubstr("a stage has failed"));
  EXPECT_FALSE(world_.runner(1).aborted().ok());
  EXPECT_EQ(channel_->failure(), done_[0].status);
}

TEST_F(ChannelTest, AbortAnswersEverythingOnce) {
  for (int32_t bucket : {0, 1, 2}) PushSum(bucket);
  channel_->Advance();
  channel_->Abort(absl::AbortedError("enough"));
  EXPECT_EQ(done_.size(), 1u);  // what has begun answers for itself
  channel_->Advance();
  ASSERT_EQ(done_.size(), 3u);
  for (const Done& done : done_) EXPECT_EQ(done.status, absl::AbortedError("enough"));
  EXPECT_TRUE(channel_->idle());
}

TEST_F(ChannelTest, ItsEndAnswersWhatIsOwed) {
  PushSum(0);
  PushSum(1);
  channel_->Advance();
  channel_.reset();
  ASSERT_EQ(done_.size(), 2u);
  for (const Done& done : done_) EXPECT_EQ(done.status.code(), absl::StatusCode::kCancelled);
}

TEST_F(ChannelTest, RunsAUsersOperation) {
  absl::Status status = absl::UnknownError("not yet");
  Operation operation;
  operation.kind = OperationKind::kBarrier;
  channel_->Push(operation, [&status](absl::Status result) { status = std::move(result); });
  channel_->Advance();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  PeerLaunchesAll();
  channel_->Advance();
  EXPECT_TRUE(status.ok());
}

TEST_F(ChannelTest, ADroppedCompletionIsAnError) {
  { const BucketCompletion completion(*this, BucketId(2), Round(1)); }
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_EQ(done_[0].status.code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace pelton
