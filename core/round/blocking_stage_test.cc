// Calls that block: a channel goes on beside them, and ends without them.
#include "core/round/blocking_stage.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "core/actor/pool_executor.h"
#include "core/actor/sim_executor.h"
#include "core/actor/spawn.h"
#include "core/pipeline/channel.h"
#include "core/pipeline/fake_world.h"
#include "core/pipeline/standard_stages.h"
#include "core/plan/bucket.h"
#include "core/plan/plan.h"
#include "core/plan/ready_tracker.h"
#include "core/round/model_rounds.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Call = std::function<absl::Status()>;

// Of what takes no time unless something is wrong.
constexpr absl::Duration kLongest = absl::Seconds(30);

// A call that returns when the test says so. Blocks: until then, or for kLongest.
absl::Status HangUntil(const absl::Notification& is_over) {
  if (is_over.WaitForNotificationWithTimeout(kLongest)) return absl::OkStatus();
  return absl::DeadlineExceededError("the test does not let rank 0's call return");
}

// Calls what a test says. Threads: as Stage. Owns: the function.
class CallingStage final : public BlockingStage {
 public:
  CallingStage(ActorRef<StageCaller> caller, Call call, std::string name = "the user's function")
      : BlockingStage(std::move(caller)), name_(std::move(name)), call_(std::move(call)) {}
  absl::string_view name() const override { return name_; }

 protected:
  BlockingCall::Function MakeCall(BucketRun&, StageState*) override { return call_; }

 private:
  const std::string name_;
  const Call call_;
};

Plan TwoBuckets() {
  std::vector<TensorSpec> tensors;
  for (const char* name : {"a", "b"}) tensors.push_back({name, DType::kFloat32, 16, {}});
  PlanOptions options;
  options.bucket_size_bytes = 64;
  options.world_size = WorldSize(2);
  return *Plan::Build(std::move(tensors), options);
}

// A channel of rank 0 of two ranks. A call is under way until the test lets the caller's executor
// run.
// Threads: one. Owns: all of it.
class BlockingStageTest : public ::testing::Test, public ReadySink, public CompletionSink {
 protected:
  using Stages = std::vector<std::unique_ptr<Stage>>;

  void OnBucketReady(BucketId, Round) override {}
  void OnBucketComplete(BucketId bucket, Round, const absl::Status& status) override {
    done_.push_back(bucket.value());
    statuses_.push_back(status);
  }

  std::unique_ptr<Stage> Calling(Call call) {
    return std::make_unique<CallingStage>(caller_, std::move(call));
  }
  std::unique_ptr<Stage> Noting(const std::string& what) {
    return Calling([this, what] {
      called_.push_back(what);
      return absl::OkStatus();
    });
  }
  void Push(int32_t bucket, std::unique_ptr<Stage> first, std::unique_ptr<Stage> second = nullptr) {
    PipelineSpec spec;
    spec.stages.push_back(std::move(first));
    if (second != nullptr) spec.stages.push_back(std::move(second));
    pipelines_.push_back(std::make_unique<Pipeline>(
        *Pipeline::Build(std::move(spec), plan_.bucket(BucketId(bucket)))));
    channel_->Push(*pipelines_.back(),
                   BucketRun(plan_, plan_.bucket(BucketId(bucket)), *storage_, tracker_,
                             world_.runner(0), Round(1)),
                   BucketCompletion(*this, BucketId(bucket), Round(1)));
  }
  void Advance() {
    while (channel_->Advance()) {
    }
  }
  void LetCallsReturn() { executor_.RunFor(absl::ZeroDuration()); }
  void PeerLaunchesAll() {
    HostStream stream;
    FakeRunner& peer = world_.runner(1);
    while (peer.launches().size() < world_.runner(0).launches().size()) {
      ASSERT_TRUE(peer.Launch(world_.runner(0).launches()[peer.launches().size()], stream).ok());
    }
    peer.Progress();
  }
  std::vector<int32_t> Launched() {
    std::vector<int32_t> buckets;
    for (const Operation& operation : world_.runner(0).launches()) {
      buckets.push_back(operation.bucket.value());
    }
    return buckets;
  }

  // They outlive the channel, whose end completes what is under way.
  std::vector<int32_t> done_;
  std::vector<absl::Status> statuses_;
  std::vector<std::string> called_;
  SimExecutor executor_{1};
  const ActorRef<StageCaller> caller_ = Spawn<StageCaller>(executor_, {});
  const Plan plan_ = TwoBuckets();
  std::unique_ptr<BucketStorage> storage_ = *BucketStorage::Create(plan_, "test");
  ReadyTracker tracker_{plan_, *storage_, *this, Round(1)};
  FakeWorld world_{2};
  std::vector<std::unique_ptr<Pipeline>> pipelines_;
  std::unique_ptr<Channel> channel_ =
      std::make_unique<Channel>(world_.runner(0), executor_.clock());
};

TEST_F(BlockingStageTest, TheNextBucketGoesOnWhileTheLastStageOfTheOneBeforeCalls) {
  Push(1, MakeAllReduceStage(ReduceOp::kSum), Noting("of b"));
  Push(0, MakeAllReduceStage(ReduceOp::kSum));
  Advance();
  EXPECT_THAT(Launched(), ElementsAre(1)) << "ORDER-1: what b has yet to call might be anything";
  PeerLaunchesAll();
  Advance();
  EXPECT_TRUE(channel_->current_is_in_call());
  PeerLaunchesAll();
  Advance();
  EXPECT_THAT(Launched(), ElementsAre(1, 0));
  EXPECT_THAT(done_, ElementsAre(0)) << "a call holds up the bucket behind it";
  EXPECT_THAT(called_, ElementsAre());
  LetCallsReturn();
  Advance();
  EXPECT_THAT(done_, ElementsAre(0, 1));
  EXPECT_THAT(called_, ElementsAre("of b"));
  for (const absl::Status& status : statuses_) EXPECT_TRUE(status.ok()) << status;
}

// ORDER-1: on another rank the call may return before the next bucket is ready.
TEST_F(BlockingStageTest, WhatIsLaunchedAfterACallIsLaunchedBeforeTheNextBucketsOperations) {
  Push(1, Noting("of b"), MakeAllReduceStage(ReduceOp::kSum));
  Push(0, MakeAllReduceStage(ReduceOp::kSum));
  Advance();
  EXPECT_THAT(Launched(), ElementsAre());
  LetCallsReturn();
  Advance();
  EXPECT_THAT(Launched(), ElementsAre(1, 0));
}

TEST_F(BlockingStageTest, FunctionsAreCalledInTheOrderOfTheirBuckets) {
  Push(1, Noting("first of b"), Noting("second of b"));
  Push(0, Noting("of a"));
  for (int i = 0; i < 3; ++i) {
    Advance();
    LetCallsReturn();
  }
  Advance();
  EXPECT_THAT(called_, ElementsAre("first of b", "second of b", "of a"));
  EXPECT_THAT(done_, ElementsAre(1, 0));
}

TEST_F(BlockingStageTest, WhoeverDrivesIsWokenOnceTheAnswerIsThere) {
  Push(0, Noting("of a"));
  Advance();
  EXPECT_EQ(world_.runner(0).wakes(), 0);
  LetCallsReturn();
  EXPECT_EQ(world_.runner(0).wakes(), 1);
  Advance();
  EXPECT_THAT(done_, ElementsAre(0));
}

TEST_F(BlockingStageTest, AnErrorFailsTheBucketOnAllRanks) {
  Push(0, Calling([] { return absl::AbortedError("the user's error"); }));
  Advance();
  LetCallsReturn();
  Advance();
  ASSERT_EQ(statuses_.size(), 1u);
  EXPECT_THAT(statuses_[0].ToString(), HasSubstr("bucket 0 (b): the user's error"));
  EXPECT_FALSE(world_.runner(1).aborted().ok());
}

TEST_F(BlockingStageTest, AnErrorDoesNotNameTheOperationOfAStageBefore) {
  Push(0, MakeAllReduceStage(ReduceOp::kSum),
       Calling([] { return absl::AbortedError("the user's error"); }));
  Advance();
  PeerLaunchesAll();
  Advance();
  LetCallsReturn();
  Advance();
  ASSERT_EQ(statuses_.size(), 1u);
  EXPECT_THAT(statuses_[0].ToString(), HasSubstr("bucket 0 (b): the user's error"));
}

TEST_F(BlockingStageTest, WhatACallThrowsNamesItsStage) {
  Push(0, Calling([]() -> absl::Status { throw std::runtime_error("the user's own words"); }));
  Advance();
  LetCallsReturn();
  Advance();
  ASSERT_EQ(statuses_.size(), 1u);
  EXPECT_THAT(statuses_[0].ToString(),
              HasSubstr("exception in stage 'the user's function': the user's own words"));
  EXPECT_TRUE(caller_.alive()) << "the functions of other buckets go with it";
}

TEST_F(BlockingStageTest, AnAbortWaitsForACallAndBeginsNothingAfterIt) {
  Push(1, Noting("of b"), Noting("after it"));
  Advance();
  channel_->Abort(absl::UnavailableError("rank 1 has died"));
  Advance();
  EXPECT_THAT(done_, ElementsAre()) << "the call works on the bucket";
  LetCallsReturn();
  Advance();
  LetCallsReturn();
  ASSERT_THAT(done_, ElementsAre(1));
  EXPECT_EQ(statuses_[0], absl::UnavailableError("rank 1 has died"));
  EXPECT_THAT(called_, ElementsAre("of b"));
}

TEST_F(BlockingStageTest, AnAbortWaitsForACallThatHangsNoLongerThanASecondAndNamesIt) {
  // On another thread, so that the caller's time passes without it.
  absl::Notification is_over;
  PoolExecutor pool({.turns_may_block = true});
  const auto caller = Spawn<StageCaller>(pool, {});
  Push(1, std::make_unique<CallingStage>(caller, [&is_over] { return HangUntil(is_over); }));
  Push(0, std::make_unique<CallingStage>(caller, [this] {
         called_.push_back("behind it");
         return absl::OkStatus();
       }));
  Advance();
  channel_->Abort(absl::UnavailableError("rank 1 has died"));
  executor_.RunFor(absl::Milliseconds(990));
  Advance();
  EXPECT_THAT(done_, ElementsAre());
  executor_.RunFor(absl::Milliseconds(20));
  Advance();
  ASSERT_THAT(done_, ElementsAre(1, 0));
  EXPECT_THAT(statuses_[0].ToString(), HasSubstr("bucket 1 (a)"));
  EXPECT_THAT(statuses_[0].ToString(),
              HasSubstr("the user's function has not returned on this rank"));
  EXPECT_THAT(statuses_[0].ToString(), HasSubstr("rank 1 has died"));
  is_over.Notify();
  // In the order of the calls, so that one which was not taken back would have been made before.
  absl::Notification is_last;
  const auto last = caller.Ask(RunCall{BlockingCall(
                                           "last",
                                           [&is_last] {
                                             is_last.Notify();
                                             return absl::OkStatus();
                                           },
                                           std::make_shared<Sleepers>()),
                                       {}},
                               absl::InfiniteFuture());
  ASSERT_TRUE(is_last.WaitForNotificationWithTimeout(kLongest)) << "the last call is not made";
  EXPECT_THAT(called_, ElementsAre()) << "its round has ended without it";
}

// The calls of a model are made one after the other, so that the end of one is the start of
// another.
TEST_F(BlockingStageTest, ACallHasItsTimeFromTheEndOfTheOneBeforeIt) {
  absl::Notification is_over;
  PoolExecutor pool({.turns_may_block = true});
  const auto caller = Spawn<StageCaller>(pool, {});
  Push(1, Noting("of b"));
  Push(0, std::make_unique<CallingStage>(caller, [&is_over] { return HangUntil(is_over); }));
  Advance();
  const absl::Time asked = executor_.Now();
  EXPECT_EQ(channel_->launched_at(), asked);
  executor_.RunFor(absl::Seconds(20));
  Advance();
  EXPECT_THAT(done_, ElementsAre(1));
  EXPECT_EQ(channel_->launched_at(), asked + absl::Seconds(20));
  is_over.Notify();
}

TEST_F(BlockingStageTest, ACallThatOutlivesItsStageWakesNobody) {
  auto message = std::make_shared<std::string>("what the call works on");
  const std::weak_ptr<std::string> watch = message;
  Push(0, Calling([message = std::move(message)] { return absl::AbortedError(*message); }));
  Advance();
  channel_.reset();
  pipelines_.clear();
  LetCallsReturn();
  EXPECT_EQ(world_.runner(0).wakes(), 0);
  EXPECT_TRUE(watch.expired()) << "nobody makes the call, and somebody keeps it";
  ASSERT_EQ(statuses_.size(), 1u);
  EXPECT_EQ(statuses_[0].code(), absl::StatusCode::kCancelled);
}

TEST_F(BlockingStageTest, WithoutACallerTheBucketFails) {
  Push(0, std::make_unique<CallingStage>(ActorRef<StageCaller>(), [] { return absl::OkStatus(); }));
  Advance();
  ASSERT_EQ(statuses_.size(), 1u);
  EXPECT_EQ(statuses_[0].code(), absl::StatusCode::kNotFound);
}

// Rank 0 of two, whose rounds run in virtual time while calls have a real thread.
// Threads: one. Owns: all of it.
class CallingRoundsTest : public ::testing::Test {
 protected:
  // Bucket 0 has a call that hangs, bucket 1 adds.
  std::unique_ptr<ModelRounds> Make() {
    ModelRoundsOptions options;
    options.executor = &executor_;
    options.runner = &world_.runner(0);
    options.operation_timeout = absl::Seconds(30);
    options.pipeline_factory = [this](const BucketLayout& layout) {
      PipelineSpec spec;
      if (layout.id == BucketId(1)) {
        spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
      } else {
        spec.stages.push_back(std::make_unique<CallingStage>(
            caller_, [over = is_over_] { return HangUntil(*over); }));
      }
      return Pipeline::Build(std::move(spec), layout);
    };
    return *ModelRounds::Create(TwoBuckets(), std::move(options));
  }
  void TearDown() override { is_over_->Notify(); }

  const std::shared_ptr<absl::Notification> is_over_ = std::make_shared<absl::Notification>();
  PoolExecutor pool_{{.turns_may_block = true}};
  const ActorRef<StageCaller> caller_ = Spawn<StageCaller>(pool_, {});
  FakeWorld world_{2};
  SimExecutor executor_{1};
};

TEST_F(CallingRoundsTest, ACallPastTheDeadlineOfItsRoundIsNamed) {
  std::unique_ptr<ModelRounds> rounds = Make();
  ASSERT_TRUE(rounds->EndRound().ok());
  const absl::Time deadline = executor_.Now() + absl::Seconds(5);
  const absl::Status status = rounds->WaitRound(deadline);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(status.ToString(),
              HasSubstr("rank 0, round 1: bucket 0 (b), stage 'the user's function' is not "
                        "done in time; it has not returned on this rank"));
  EXPECT_LE(executor_.Now(), deadline + absl::Milliseconds(1'100));
  EXPECT_FALSE(world_.runner(1).aborted().ok()) << "the peer waits";
}

TEST_F(CallingRoundsTest, ACallHasTheTimeOutOfAnOperation) {
  std::unique_ptr<ModelRounds> rounds = Make();
  ASSERT_TRUE(rounds->EndRound().ok());
  auto done = rounds->RoundDone(absl::InfiniteFuture());
  executor_.RunFor(absl::Seconds(29));
  EXPECT_FALSE(done.ready());
  executor_.RunFor(absl::Seconds(3));
  ASSERT_TRUE(done.ready());
  EXPECT_THAT(std::move(done).Take().ToString(), HasSubstr("'the user's function' is not done"));
}

TEST_F(CallingRoundsTest, WhoeverAsksIsToldOfTheCall) {
  std::unique_ptr<ModelRounds> rounds = Make();
  ASSERT_TRUE(rounds->EndRound().ok());
  executor_.RunFor(absl::Milliseconds(10));
  auto sight = rounds->RequestLook(absl::InfiniteFuture());
  executor_.RunFor(absl::Milliseconds(10));
  ASSERT_TRUE(sight.ready());
  EXPECT_THAT(std::move(sight).Take()->work, HasSubstr("stage 'the user's function'"));
}

TEST_F(CallingRoundsTest, TheEndOfTheRoundsDoesNotWaitForACall) {
  std::unique_ptr<ModelRounds> rounds = Make();
  ASSERT_TRUE(rounds->EndRound().ok());
  executor_.RunFor(absl::Milliseconds(10));
  auto done = rounds->RoundDone(executor_.Now() + absl::Hours(1));
  executor_.RunFor(absl::Milliseconds(10));
  rounds.reset();
  ASSERT_TRUE(done.ready());
  EXPECT_FALSE(std::move(done).Take().ok());
}

}  // namespace
}  // namespace pelton
