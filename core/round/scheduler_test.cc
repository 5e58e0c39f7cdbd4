// The ends of the scheduler: what is owed is answered once, and with its reason.
#include "core/round/scheduler.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/actor/monitor.h"
#include "core/actor/sim_executor.h"
#include "core/actor/spawn.h"
#include "core/base/moving_deadline.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/fake_world.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/standard_stages.h"
#include "core/plan/round_mode.h"
#include "core/round/model_rounds.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

Plan PlanOf(int buckets) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < buckets; ++i) {
    tensors.push_back({absl::StrCat("t", i), DType::kFloat32, 100, {}});
  }
  PlanOptions options;
  options.world_size = WorldSize(2);
  options.bucket_size_bytes = 400;
  return *Plan::Build(std::move(tensors), std::move(options));
}

// Waits for a lock and launches nothing.
// Threads: one. Owns: nothing.
class LockStage final : public Stage {
 public:
  explicit LockStage(const bool* held) : held_(*held) {}
  absl::string_view name() const override { return "lock"; }
  absl::Status Start(BucketRun&, StageState*) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Advance(BucketRun&, StageState*) override { return !held_; }

 private:
  const bool& held_;
};

// Throws, as a user's code does.
// Threads: one. Owns: nothing.
class ThrowingStage final : public Stage {
 public:
  absl::string_view name() const override { return "throwing"; }
  absl::Status Start(BucketRun&, StageState*) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Advance(BucketRun&, StageState*) override {
    throw std::runtime_error("the user's own words");
  }
};

using MakeStage = std::function<std::unique_ptr<Stage>(BucketId)>;

// Rank 0 of two; the other one never comes.
// Threads: one. Owns: all of it.
class SchedulerEndTest : public ::testing::Test {
 protected:
  std::unique_ptr<ModelRounds> Make(int buckets, MakeStage stage) {
    ModelRoundsOptions options;
    options.executor = &executor_;
    options.runner = &world_.runner(0);
    options.pipeline_factory = [stage](const BucketLayout& layout) {
      PipelineSpec spec;
      spec.stages.push_back(stage(layout.id));
      return Pipeline::Build(std::move(spec), layout);
    };
    options.on_failure = [this](const absl::Status& status) { failures_.push_back(status); };
    return *ModelRounds::Create(PlanOf(buckets), std::move(options));
  }
  // Bucket 0 adds, bucket 1 begins behind it and waits for a lock, the others are queued.
  std::unique_ptr<ModelRounds> OneWaitsForALock(int buckets) {
    return Make(buckets, [this](BucketId bucket) -> std::unique_ptr<Stage> {
      if (bucket == BucketId(1)) return std::make_unique<LockStage>(&lock_is_held_);
      return MakeAllReduceStage(ReduceOp::kSum);
    });
  }

  bool lock_is_held_ = true;
  std::vector<absl::Status> failures_;
  FakeWorld world_{2};
  SimExecutor executor_{1};
};

TEST_F(SchedulerEndTest, AForcedEndDoesNotWaitForAStagesLock) {
  std::unique_ptr<ModelRounds> rounds = OneWaitsForALock(2);
  ASSERT_TRUE(rounds->EndRound().ok());
  executor_.RunFor(absl::Milliseconds(1));
  auto done = rounds->RoundDone(executor_.Now() + absl::Hours(1));
  executor_.RunFor(absl::Milliseconds(1));
  rounds.reset();
  ASSERT_TRUE(done.ready());
  EXPECT_FALSE(std::move(done).Take().ok());
}

TEST_F(SchedulerEndTest, AFailureAnswersOnceForWhatHasBegunAndForWhatIsQueued) {
  std::unique_ptr<ModelRounds> rounds = OneWaitsForALock(4);
  ASSERT_TRUE(rounds->EndRound().ok());
  executor_.RunFor(absl::Milliseconds(1));
  auto done = rounds->RoundDone(executor_.Now() + absl::Hours(1));
  world_.Kill(1);
  executor_.RunFor(absl::Milliseconds(1));
  ASSERT_TRUE(done.ready()) << "a lock keeps the failure back";
  const absl::Status status = std::move(done).Take();
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 has died")) << status;
  lock_is_held_ = false;
  executor_.RunFor(absl::Minutes(10));
  ASSERT_EQ(failures_.size(), 1u);
}

TEST_F(SchedulerEndTest, WhatAStageThrowsIsTheRoundsReason) {
  std::unique_ptr<ModelRounds> rounds =
      Make(2, [](BucketId) { return std::make_unique<ThrowingStage>(); });
  ASSERT_TRUE(rounds->EndRound().ok());
  for (int round = 0; round < 2; ++round) {
    const absl::Status status = rounds->WaitRound(executor_.Now() + absl::Seconds(5));
    EXPECT_TRUE(absl::StrContains(status.message(), "the user's own words")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "stage 'throwing'")) << status;
  }
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_FALSE(world_.runner(1).aborted().ok()) << "the peer waits";
}

// The barrier of a round that collects is over when the last rank comes to stop, which no
// operation's time bounds; its waiter's deadline does.
TEST_F(SchedulerEndTest, TheBarrierBeforeARoundThatCollectsWaitsForAllRanksAndForNoTimeout) {
  std::unique_ptr<ModelRounds> rounds =
      Make(2, [](BucketId) { return MakeAllReduceStage(ReduceOp::kSum); });
  rounds->SetMode(RoundMode::kCollecting);
  ASSERT_TRUE(rounds->EndRound().ok());
  auto done = rounds->RoundDone(absl::InfiniteFuture());
  executor_.RunFor(absl::Hours(5));
  EXPECT_FALSE(done.ready());
  ASSERT_EQ(world_.runner(0).launches().size(), 1u) << "a bucket does not wait for the barrier";
  EXPECT_EQ(world_.runner(0).launches()[0].kind, OperationKind::kBarrier);
  HostStream stream;
  ASSERT_TRUE(world_.runner(1).Launch(Operation(), stream).ok());
  auto sight = rounds->RequestLook(absl::InfiniteFuture());  // wakes the scheduler
  executor_.RunFor(absl::Milliseconds(1));
  EXPECT_EQ(std::move(sight).Take()->complete_count, 0);
  EXPECT_GT(world_.runner(0).launches().size(), 1u) << "the buckets begin behind it";
  // From then on operations have their time-out again.
  executor_.RunFor(absl::Hours(1));
  ASSERT_TRUE(done.ready());
  EXPECT_TRUE(absl::IsDeadlineExceeded(std::move(done).Take()));
}

TEST_F(SchedulerEndTest, AWaitersDeadlineAtTheBarrierNamesTheRanksThatAreMissing) {
  std::unique_ptr<ModelRounds> rounds =
      Make(2, [](BucketId) { return MakeAllReduceStage(ReduceOp::kSum); });
  rounds->SetMode(RoundMode::kCollecting);
  ASSERT_TRUE(rounds->EndRound().ok());
  const absl::Status status = rounds->WaitRound(executor_.Now() + absl::Seconds(5));
  EXPECT_TRUE(absl::StrContains(status.message(),
                                "the barrier at which every rank's own rounds "
                                "have ended is not done in time; waiting for "
                                "rank 1"))
      << status;
}

// Rank 0 of two, whose deadlines may stand still; the other rank never comes.
// Threads: one. Owns: all of it.
class StandstillTest : public SchedulerEndTest {
 protected:
  std::unique_ptr<ModelRounds> Make() {
    ModelRoundsOptions options;
    options.executor = &executor_;
    options.runner = &world_.runner(0);
    options.operation_timeout = absl::Seconds(30);
    options.standstill = &standstill_;
    options.pipeline_factory = [](const BucketLayout& layout) {
      PipelineSpec spec;
      spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
      return Pipeline::Build(std::move(spec), layout);
    };
    return *ModelRounds::Create(PlanOf(2), std::move(options));
  }

  Standstill standstill_;
};

TEST_F(StandstillTest, AnOperationsTimeOutCountsOnlyWhileDeadlinesRun) {
  std::unique_ptr<ModelRounds> rounds = Make();
  ASSERT_TRUE(rounds->EndRound().ok());
  auto done = rounds->RoundDone(executor_.Now() + absl::Hours(1));
  executor_.RunFor(absl::Seconds(20));
  standstill_.Begin(executor_.Now());
  executor_.RunFor(absl::Hours(2));
  EXPECT_FALSE(done.ready()) << std::move(done).Take();
  standstill_.End(executor_.Now());
  executor_.RunFor(absl::Seconds(9));
  EXPECT_FALSE(done.ready()) << "10 s were left";
  executor_.RunFor(absl::Seconds(2));
  ASSERT_TRUE(done.ready());
  EXPECT_TRUE(absl::IsDeadlineExceeded(std::move(done).Take()));
}

TEST_F(StandstillTest, AWaitersDeadlineThatIsGivenMeanwhileBeginsWithItsEnd) {
  std::unique_ptr<ModelRounds> rounds = Make();
  ASSERT_TRUE(rounds->MarkReady(SlotId(0)).ok());
  standstill_.Begin(executor_.Now());
  executor_.RunFor(absl::Minutes(5));
  auto done = rounds->RoundDone(executor_.Now() + absl::Seconds(8));
  executor_.RunFor(absl::Minutes(5));
  EXPECT_FALSE(done.ready()) << std::move(done).Take();
  standstill_.End(executor_.Now());
  executor_.RunFor(absl::Seconds(7));
  EXPECT_FALSE(done.ready()) << "1 s was left";
  executor_.RunFor(absl::Seconds(2));
  ASSERT_TRUE(done.ready());
  EXPECT_TRUE(absl::IsDeadlineExceeded(std::move(done).Take()));
}

TEST_F(StandstillTest, TwoReasonsEndWithTheLastOfThem) {
  std::unique_ptr<ModelRounds> rounds = Make();
  ASSERT_TRUE(rounds->EndRound().ok());
  auto done = rounds->RoundDone(executor_.Now() + absl::Seconds(10));
  standstill_.Begin(executor_.Now());
  standstill_.Begin(executor_.Now());
  executor_.RunFor(absl::Minutes(1));
  standstill_.End(executor_.Now());
  executor_.RunFor(absl::Minutes(1));
  EXPECT_FALSE(done.ready()) << std::move(done).Take();
  EXPECT_EQ(standstill_.Total(executor_.Now()), absl::Minutes(2));
  standstill_.End(executor_.Now());
  executor_.RunFor(absl::Seconds(11));
  EXPECT_TRUE(done.ready());
}

// A sink that nobody listens to.
// Threads: any. Owns: nothing.
class NoSink final : public ReadySink {
 public:
  void OnBucketReady(BucketId, Round) override {}
};

std::unique_ptr<PlanInstance> InstanceOf(Plan plan, ReadySink& sink) {
  auto instance = std::make_unique<PlanInstance>(std::move(plan));
  for (const BucketLayout& bucket : instance->plan.buckets()) {
    PipelineSpec spec;
    spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
    instance->pipelines.push_back(*Pipeline::Build(std::move(spec), bucket));
  }
  instance->storage = *BucketStorage::Create(instance->plan, "test");
  instance->tracker =
      std::make_unique<ReadyTracker>(instance->plan, *instance->storage, sink, Round(1));
  return instance;
}

// GEN-1.
TEST(SchedulerTest, ABucketOfAnOlderPlanIsNotLaunched) {
  FakeWorld world(1);
  NoSink sink;
  SimExecutor executor(1);
  const std::unique_ptr<PlanInstance> old = InstanceOf(PlanOf(2), sink);
  const std::vector<SlotId> order{SlotId(0), SlotId(1)};
  const std::unique_ptr<PlanInstance> next = InstanceOf(*old->plan.Reordered(order), sink);
  SchedulerOptions options;
  options.runner = &world.runner(0);
  options.operation_timeout = absl::Minutes(1);
  const auto scheduler =
      Spawn<BucketScheduler>(executor, {}, std::move(options), PlanInstanceLoan(old.get()));
  auto installed =
      scheduler.Ask(InstallPlan{PlanInstanceLoan(next.get()), {}}, absl::InfiniteFuture());
  const PlanVersion version = old->plan.version();
  ASSERT_TRUE(scheduler.Send(BucketReady{BucketId(0), Round(1), version}).ok());
  executor.RunFor(absl::Seconds(1));
  ASSERT_TRUE(std::move(installed).Take().ok());
  EXPECT_TRUE(world.runner(0).launches().empty());
  ASSERT_TRUE(scheduler.Send(BucketReady{BucketId(0), Round(1), next->plan.version()}).ok());
  executor.RunFor(absl::Seconds(1));
  EXPECT_EQ(world.runner(0).launches().size(), 1u);
  EXPECT_TRUE(StopAndWait(scheduler, executor.Now() + absl::Seconds(1)).ok());
}

}  // namespace
}  // namespace pelton
