#include "core/round/model_rounds.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/base/split_mix.h"
#include "core/pipeline/fake_world.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"
#include "core/round/model_rounds_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

TEST_F(ModelRoundsTest, SumsWhatAllRanksProduced) {
  Start(PlanOf(Tensors(5, 100), 3, 1000), 3);
  for (float base : {1.0f, 10.0f, 100.0f}) {
    ProduceAll(base);
    for (auto& rank : ranks_) {
      ASSERT_TRUE(rank->EndRound().ok());
      ASSERT_TRUE(rank->WaitRound(In(absl::Seconds(1))).ok());
      for (int32_t slot = 0; slot < 5; ++slot) {
        EXPECT_EQ(First(*rank, SlotId(slot)), 3 * base + 3);
        EXPECT_TRUE(rank->ResultOf(SlotId(slot)).used_by_any);
      }
    }
  }
}

TEST_F(ModelRoundsTest, CountsOnFromItsFirstRound) {
  world_ = std::make_unique<FakeWorld>(1);
  ModelRoundsOptions options;
  options.executor = &executor_;
  options.runner = &world_->runner(0);
  options.first_round = Round(6);
  options.pipeline_factory = [](const BucketLayout& layout) {
    PipelineSpec spec;
    spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
    spec.period = 2;
    spec.phase = 1;  // rounds 2, 4, 6
    return Pipeline::Build(std::move(spec), layout);
  };
  auto rounds = ModelRounds::Create(PlanOf(Tensors(1, 10), 1, 1000), std::move(options));
  ASSERT_TRUE(rounds.ok()) << rounds.status();
  EXPECT_EQ((*rounds)->round(), Round(6));
  for (const bool communicates : {true, false, true}) {
    EXPECT_EQ((*rounds)->Communicates(SlotId(0)), communicates);
    ASSERT_TRUE(Produce(**rounds, SlotId(0), 1).ok());
    ASSERT_TRUE((*rounds)->WaitRound(In(absl::Seconds(1))).ok());
  }
  EXPECT_EQ(world_->runner(0).launches().size(), 2u);
  EXPECT_EQ((*rounds)->round(), Round(9));
}

TEST_F(ModelRoundsTest, LaunchesInPlanOrderWhateverComesFirst) {
  Start(PlanOf(Tensors(4, 100), 2, 400), 2);  // a bucket per tensor; slot 3 is in bucket 0
  for (int32_t slot : {0, 2, 1, 3}) ASSERT_TRUE(Produce(*ranks_[0], SlotId(slot), 1).ok());
  for (int32_t slot : {3, 0, 1, 2}) ASSERT_TRUE(Produce(*ranks_[1], SlotId(slot), 1).ok());
  for (auto& rank : ranks_) ASSERT_TRUE(rank->WaitRound(In(absl::Seconds(1))).ok());
  for (int32_t rank : {0, 1}) {
    std::vector<int32_t> buckets;
    for (const Operation& each : world_->runner(rank).launches()) {
      buckets.push_back(each.bucket.value());
    }
    EXPECT_EQ(buckets, (std::vector<int32_t>{0, 1, 2, 3, 3}));  // the usage goes with the last
  }
}

TEST_F(ModelRoundsTest, TellsWhatTheOpenRoundIsAt) {
  Start(PlanOf(Tensors(4, 100), 2, 400), 2);  // a bucket per tensor; slot 3 is in bucket 0
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(3), 1).ok());
  auto sight = ranks_[0]->Look(In(absl::Seconds(1)));
  ASSERT_TRUE(sight.ok()) << sight.status();
  EXPECT_EQ(sight->round, Round(1));
  EXPECT_TRUE(sight->is_under_way());
  EXPECT_EQ(sight->bucket_count, 4);
  EXPECT_EQ(sight->ready_count, 1);
  EXPECT_EQ(sight->complete_count, 0);  // rank 1 has not come
  EXPECT_THAT(sight->work, testing::HasSubstr("bucket 0"));
  EXPECT_THAT(sight->awaited, testing::HasSubstr("has not been marked ready"));
  EXPECT_EQ(sight->waited_since, absl::InfiniteFuture());

  for (int32_t slot : {0, 1, 2}) ASSERT_TRUE(Produce(*ranks_[0], SlotId(slot), 1).ok());
  auto done = ranks_[0]->RoundDone(In(absl::Seconds(1)));
  sight = ranks_[0]->Look(In(absl::Seconds(1)));
  ASSERT_TRUE(sight.ok()) << sight.status();
  EXPECT_LE(sight->waited_since, sight->now);
  EXPECT_EQ(sight->awaited, "");

  for (int32_t slot : {3, 0, 1, 2}) ASSERT_TRUE(Produce(*ranks_[1], SlotId(slot), 1).ok());
  ASSERT_TRUE(ranks_[1]->WaitRound(In(absl::Seconds(1))).ok());
  ASSERT_TRUE(ranks_[0]->CloseRound(std::move(done).Await(In(absl::Seconds(1)))).ok());
  sight = ranks_[0]->Look(In(absl::Seconds(1)));
  ASSERT_TRUE(sight.ok()) << sight.status();
  EXPECT_EQ(sight->round, Round(2));
  EXPECT_FALSE(sight->is_under_way());
}

TEST_F(ModelRoundsTest, KnowsTensorsThatNobodyUsed) {
  Start(PlanOf(Tensors(3, 10), 2, 1000), 2);
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(0), 5).ok());
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(1), 5).ok());
  ASSERT_TRUE(Produce(*ranks_[1], SlotId(1), 6).ok());
  EXPECT_EQ(ranks_[1]->UnmarkedSlots(), (std::vector<SlotId>{SlotId(2), SlotId(0)}));
  for (auto& rank : ranks_) ASSERT_TRUE(rank->EndRound().ok());
  for (auto& rank : ranks_) {
    ASSERT_TRUE(rank->WaitRound(In(absl::Seconds(1))).ok());
    EXPECT_EQ(First(*rank, SlotId(0)), 5);  // the other rank counts as zeros
    EXPECT_TRUE(rank->ResultOf(SlotId(0)).used_by_any);
    EXPECT_EQ(First(*rank, SlotId(1)), 11);
    EXPECT_FALSE(rank->ResultOf(SlotId(2)).used_by_any);
  }
}

TEST_F(ModelRoundsTest, KnowsThemInEveryBucketByOneOperationOfARound) {
  Start(PlanOf(Tensors(6, 100), 3, 800), 3);  // three buckets of two tensors
  ASSERT_EQ(ranks_[0]->plan().buckets().size(), 3u);
  for (int round = 0; round < 3; ++round) {
    // Slot 4 is of the first bucket. It is nobody's in each round, slot 1 in one, and slot 0 is
    // rank 2's alone; every rank marks in an order of its own.
    for (int32_t rank = 0; rank < 3; ++rank) {
      for (int32_t i = 0; i < 6; ++i) {
        const int32_t slot = (i * 5 + rank) % 6;
        if (slot == 4 || (slot == 1 && round == 1) || (slot == 0 && rank != 2)) continue;
        ASSERT_TRUE(Produce(*ranks_[rank], SlotId(slot), 1).ok());
      }
    }
    for (auto& rank : ranks_) ASSERT_TRUE(rank->EndRound().ok());
    for (auto& rank : ranks_) {
      ASSERT_TRUE(rank->WaitRound(In(absl::Seconds(1))).ok());
      for (int32_t slot = 0; slot < 6; ++slot) {
        EXPECT_EQ(rank->ResultOf(SlotId(slot)).used_by_any, slot != 4 && (slot != 1 || round != 1))
            << "slot " << slot << " in round " << round;
      }
    }
  }
  const auto& launches = world_->runner(0).launches();
  ASSERT_EQ(launches.size(), 3u * 4u);
  for (size_t i = 0; i < launches.size(); ++i) {
    // Before the last bucket's own, which is in flight with it.
    EXPECT_EQ(launches[i].dtype, i % 4 == 2 ? DType::kUInt8 : DType::kFloat32) << i;
    EXPECT_EQ(launches[i].count, i % 4 == 2 ? 6u : 225u) << i;
  }
}

TEST_F(ModelRoundsTest, RefusesToFindUnusedTensorsInSomeRoundsOnly) {
  world_ = std::make_unique<FakeWorld>(1);
  ModelRoundsOptions options;
  options.runner = &world_->runner(0);
  options.executor = &executor_;
  options.pipeline_factory = [](const BucketLayout& layout) {
    PipelineSpec spec;
    spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
    spec.period = 4;
    spec.finds_unused = true;
    return Pipeline::Build(std::move(spec), layout);
  };
  const auto rounds = ModelRounds::Create(PlanOf(Tensors(1, 10), 1, 1000), std::move(options));
  EXPECT_NE(rounds.status().message().find("bucket 0 (t0): its pipeline has a period of 4"),
            std::string::npos)
      << rounds.status();
}

TEST_F(ModelRoundsTest, ReducesStandaloneTensorsWhereTheyAre) {
  Start(PlanOf(Tensors(2, 100), 2, 10000, 400), 2);
  std::vector<std::vector<float>> memory(4, std::vector<float>(100, 2.0f));
  for (int32_t rank : {0, 1}) {
    EXPECT_EQ(ranks_[rank]->MarkReady(SlotId(0)).code(), absl::StatusCode::kInvalidArgument);
    ASSERT_TRUE(ranks_[rank]->MarkReady(SlotId(0), memory[rank * 2].data()).ok());
  }
  ASSERT_TRUE(ranks_[0]->MarkReady(SlotId(1), memory[1].data()).ok());
  for (auto& rank : ranks_) ASSERT_TRUE(rank->EndRound().ok());
  for (auto& rank : ranks_) ASSERT_TRUE(rank->WaitRound(In(absl::Seconds(1))).ok());
  EXPECT_EQ(memory[0][99], 4);
  EXPECT_EQ(memory[2][99], 4);
  EXPECT_EQ(reinterpret_cast<float*>(ranks_[0]->ResultOf(SlotId(0)).data), memory[0].data());
  EXPECT_EQ(First(*ranks_[1], SlotId(1)), 2);  // zeros of its own and the other's
}

TEST_F(ModelRoundsTest, NamesTheRanksThatHaveNotArrivedByTheDeadline) {
  Start(PlanOf(Tensors(1, 10), 3, 1000), 3);
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(0), 1).ok());
  const absl::Time deadline = In(absl::Seconds(3));
  const absl::Status status = ranks_[0]->WaitRound(deadline);
  EXPECT_EQ(executor_.Now(), deadline);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  for (const char* part : {"rank 0", "round 1", "bucket 0 (t0)", "allreduce", "rank 1, 2"}) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << " lacks " << part;
  }
  // The peers are told, and everyone fails from now on with the first reason.
  EXPECT_FALSE(world_->runner(1).aborted().ok());
  ASSERT_TRUE(ranks_[0]->EndRound().ok());
  EXPECT_TRUE(absl::StrContains(ranks_[0]->WaitRound(In(absl::Seconds(3))).message(), "rank 1, 2"));
  EXPECT_EQ(failures_.size(), 1u);
}

TEST_F(ModelRoundsTest, NamesTheTensorThatWasNeverMarked) {
  Start(PlanOf(Tensors(3, 10), 1, 1000), 1, absl::Seconds(5));
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(0), 1).ok());
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(2), 1).ok());
  const absl::Status status = ranks_[0]->WaitRound(In(absl::Hours(1)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(absl::StrContains(status.message(), "tensor 't1' has not been marked")) << status;
}

TEST_F(ModelRoundsTest, ReportsAStuckBucketWithoutAWaiter) {
  Start(PlanOf(Tensors(2, 100), 1, 400), 1, absl::Seconds(5));
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(0), 1).ok());  // bucket 1: bucket 0 is awaited
  executor_.RunFor(absl::Seconds(4));
  EXPECT_TRUE(failures_.empty());
  executor_.RunFor(absl::Seconds(2));
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_TRUE(absl::StrContains(failures_[0].message(), "'t1'")) << failures_[0];
}

// The watch's message overtakes those of marks.
TEST_F(ModelRoundsTest, ABucketWhoseMarkWaitsForTheSchedulersTurnIsNotOverdue) {
  Start(PlanOf(Tensors(2, 100), 1, 400), 1, absl::Seconds(5));
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(1), 1).ok());  // bucket 0: bucket 1 is awaited
  executor_.RunFor(absl::Seconds(1));
  Future<RoundSight> sight = ranks_[0]->RequestLook(In(absl::Seconds(1)));
  executor_.SetFaults({.delay_one_in = 1});  // no actor has a turn
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(0), 1).ok());
  executor_.RunFor(absl::Seconds(10));
  executor_.SetFaults({});
  const absl::Status status = ranks_[0]->WaitRound(In(absl::Seconds(1)));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(std::move(sight).Take()->awaited,
              testing::EndsWith("its last tensor has only just been marked ready on this rank"));
}

TEST_F(ModelRoundsTest, AWaitersDeadlineEndsTheRoundThoughAMarkWaitsForTheSchedulersTurn) {
  Start(PlanOf(Tensors(2, 100), 1, 400), 1);
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(1), 1).ok());
  Future<void> done = ranks_[0]->RoundDone(In(absl::Seconds(5)));
  executor_.RunFor(absl::Seconds(1));
  executor_.SetFaults({.delay_one_in = 1});  // no actor has a turn
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(0), 1).ok());
  executor_.RunFor(absl::Seconds(10));
  executor_.SetFaults({});
  executor_.RunFor(absl::Seconds(1));
  ASSERT_TRUE(done.ready());
  EXPECT_THAT(std::string(ranks_[0]->CloseRound(std::move(done).Take()).message()),
              testing::HasSubstr("bucket 1 (t0) is not ready in time: its last tensor has only"));
}

TEST_F(ModelRoundsTest, DisagreementFailsOneRoundOnly) {
  Start(PlanOf(Tensors(1, 10), 2, 1000), 2);
  // A rank whose plan differs, which the hash would have told.
  ranks_.pop_back();
  ModelRoundsOptions options;
  options.rank = Rank(1);
  options.executor = &executor_;
  options.runner = &world_->runner(1);
  options.pipeline_factory = SumPipeline;
  ranks_.push_back(*ModelRounds::Create(PlanOf(Tensors(1, 40), 2, 1000), std::move(options)));
  for (int round = 0; round < 2; ++round) {
    ProduceAll(1);
    for (auto& rank : ranks_) {
      const absl::Status status = rank->WaitRound(In(absl::Seconds(1)));
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "count is")) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "bucket 0 (t0)")) << status;
    }
    EXPECT_TRUE(world_->runner(0).aborted().ok());
  }
}

TEST_F(ModelRoundsTest, AnExchangeOfWhatIsUsedThatFailsIsNamed) {
  world_ = std::make_unique<FakeWorld>(2);
  for (int32_t rank : {0, 1}) {
    ModelRoundsOptions options;
    options.rank = Rank(rank);
    options.executor = &executor_;
    options.runner = &world_->runner(rank);
    options.pipeline_factory = [](const BucketLayout& layout) {
      PipelineSpec spec;
      spec.stages.push_back(MakeLocalStage("no-op", [](auto&&...) {}));
      spec.finds_unused = true;
      return Pipeline::Build(std::move(spec), layout);
    };
    // Plans that differ, which the hash would have told.
    Plan plan = PlanOf(Tensors(1 + rank, 10), 2, 1000);
    ranks_.push_back(*ModelRounds::Create(std::move(plan), std::move(options)));
  }
  ProduceAll(1);
  for (auto& rank : ranks_) {
    EXPECT_THAT(rank->WaitRound(In(absl::Seconds(1))).ToString(),
                testing::HasSubstr("the exchange of which tensors any rank has used: count is 1 on "
                                   "rank 0 and 2 on rank 1"));
  }
}

TEST_F(ModelRoundsTest, DeathOfAPeerReachesTheWaiter) {
  Start(PlanOf(Tensors(2, 100), 2, 400), 2);
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(1), 1).ok());
  executor_.RunFor(absl::Milliseconds(1));
  world_->Kill(1);
  ranks_[0]->Abort(absl::UnavailableError("rank 1 has died"));
  const absl::Status status = ranks_[0]->WaitRound(In(absl::Hours(1)));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 has died")) << status;
}

TEST_F(ModelRoundsTest, TellsWhenBucketsWereReadyAndComplete) {
  Start(PlanOf(Tensors(2, 100), 1, 400), 1);
  ModelRounds& rounds = *ranks_[0];
  const auto round = [&] {
    ProduceAll(1);
    ASSERT_TRUE(rounds.EndRound().ok());
    ASSERT_TRUE(rounds.WaitRound(In(absl::Seconds(1))).ok());
  };
  round();
  EXPECT_EQ(rounds.times().done_ns(BucketId(0)), 0) << "it is off";
  rounds.times().Begin(2);
  round();
  for (int32_t bucket = 0; bucket < 2; ++bucket) {
    EXPECT_GT(rounds.times().ready_ns(BucketId(bucket)), 0);
    EXPECT_GE(rounds.times().done_ns(BucketId(bucket)), rounds.times().ready_ns(BucketId(bucket)));
  }
}

// Counts its rounds in its state.
// Threads: one. Owns: nothing.
class CountingStage final : public Stage {
 public:
  absl::string_view name() const override { return "count"; }
  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    return std::make_unique<FlatState>(layout, DType::kFloat32,
                                       std::initializer_list<absl::string_view>{"rounds"});
  }
  absl::Status Start(BucketRun&, StageState* state) override {
    ++*reinterpret_cast<float*>(state->buffers()[0].data);
    return absl::OkStatus();
  }
};

// A trainer marks some tensors and is gone; another one marks what is not complete. The seed
// chooses which tensors, and how far they have come.
class TakenBackTest : public ModelRoundsTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
  static constexpr int kSlots = 6;

  uint64_t Draw() { return SplitMix(GetParam(), drawn_++); }
  // Rank 0's tensors in an order of the seed, as many as it says.
  void MarkSome() {
    std::vector<int32_t> slots = {0, 1, 2, 3, 4, 5};
    for (size_t i = slots.size(); i > 1; --i) std::swap(slots[i - 1], slots[Draw() % i]);
    slots.resize(Draw() % (kSlots + 1));
    for (int32_t slot : slots) ASSERT_TRUE(Produce(*ranks_[0], SlotId(slot), 1).ok());
    executor_.RunFor(absl::Microseconds(static_cast<int64_t>(Draw() % 5)));
  }
  void ExpectSums(float sum) {
    for (const auto& rank : ranks_) {
      const absl::Status status = rank->WaitRound(executor_.Now() + absl::Seconds(1));
      ASSERT_TRUE(status.ok()) << status;
      for (int32_t slot = 0; slot < kSlots; ++slot) {
        EXPECT_EQ(First(*rank, SlotId(slot)), sum) << "seed " << GetParam() << ", slot " << slot;
      }
    }
  }

  uint64_t drawn_ = 0;
};

TEST_P(TakenBackTest, BucketsThatAreCompleteStaySoAndTheOthersTakeNewMarks) {
  Start(PlanOf(Tensors(kSlots, 64), 2, 512), 2);
  ProduceAll(0);  // a round before
  ExpectSums(1);
  MarkSome();
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    ASSERT_TRUE(Produce(*ranks_[1], SlotId(slot), 10).ok());
  }
  absl::StatusOr<std::vector<BucketId>> complete =
      ranks_[0]->TakeBackMarks(executor_.Now() + absl::Seconds(1));
  ASSERT_TRUE(complete.ok()) << complete.status();
  for (const BucketLayout& bucket : ranks_[0]->plan().buckets()) {
    const bool is_complete =
        std::find(complete->begin(), complete->end(), bucket.id) != complete->end();
    for (SlotId slot : bucket.slots) {
      if (is_complete) {
        EXPECT_EQ(*reinterpret_cast<const float*>(ranks_[0]->DataOf(slot)), 11) << slot.value();
        EXPECT_EQ(ranks_[0]->MarkReady(slot).code(), absl::StatusCode::kAlreadyExists);
      } else {
        EXPECT_TRUE(Produce(*ranks_[0], slot, 1).ok());
      }
    }
  }
  ExpectSums(11);
  ProduceAll(3);
  ExpectSums(7);
}

INSTANTIATE_TEST_SUITE_P(Seeds, TakenBackTest, ::testing::Range<uint64_t>(1, 60));

TEST_F(ModelRoundsTest, WhatIsUnderWayIsWaitedForBeforeMarksAreTakenBack) {
  Start(PlanOf(Tensors(2, 64), 2, 256), 2);
  ASSERT_TRUE(Produce(*ranks_[0], ranks_[0]->plan().buckets()[0].slots[0], 1).ok());
  executor_.RunFor(absl::Milliseconds(1));
  const auto late = ranks_[0]->TakeBackMarks(executor_.Now() + absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  EXPECT_TRUE(
      absl::StrContains(late.status().message(), "round 1: waiting for the buckets under way"))
      << late.status();
}

TEST_F(ModelRoundsTest, ARoundThatHasFailedTakesNoMarkBack) {
  Start(PlanOf(Tensors(2, 64), 2, 256), 2);
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(0), 1).ok());
  ranks_[0]->Abort(absl::AbortedError("enough"));
  const auto failed = ranks_[0]->TakeBackMarks(executor_.Now() + absl::Seconds(1));
  EXPECT_TRUE(absl::StrContains(failed.status().message(), "enough")) << failed.status();
}

// Threads: one. Owns: as its base.
class ModelRoundsStateTest : public ModelRoundsTest {
 protected:
  // What the stage of rank 0 has counted after a round that is complete and one that fails.
  float CountedAfterAFailure(bool commits_state) {
    FakeWorld world(2);
    ModelRoundsOptions options;
    options.executor = &executor_;
    options.runner = &world.runner(0);
    options.commits_state = commits_state;
    options.pipeline_factory = [](const BucketLayout& layout) {
      PipelineSpec spec;
      spec.stages.push_back(std::make_unique<CountingStage>());
      spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
      return Pipeline::Build(std::move(spec), layout);
    };
    auto rounds = *ModelRounds::Create(PlanOf(Tensors(1, 10), 2, 1000), std::move(options));
    HostStream stream;
    EXPECT_TRUE(Produce(*rounds, SlotId(0), 1).ok());
    executor_.RunFor(absl::Milliseconds(1));
    std::vector<float> peer(world.runner(0).launches()[0].count, 2);
    Operation operation = world.runner(0).launches()[0];
    operation.set_source(Locate(peer.data(), peer.size() * sizeof(float)));
    operation.set_target(operation.source());
    EXPECT_TRUE(world.runner(1).Launch(operation, stream).ok());
    EXPECT_TRUE(rounds->WaitRound(In(absl::Seconds(1))).ok());
    // The peer never comes.
    EXPECT_TRUE(Produce(*rounds, SlotId(0), 1).ok());
    EXPECT_FALSE(rounds->WaitRound(In(absl::Seconds(1))).ok());
    const std::vector<SlotState> states = *rounds->SaveStates(In(absl::Seconds(1)));
    return *reinterpret_cast<const float*>(states[0].bytes.data());
  }
};

// COMMIT-1.
TEST_F(ModelRoundsStateTest, ChangesWithACompleteRoundOnly) {
  EXPECT_EQ(CountedAfterAFailure(/*commits_state=*/true), 1);
  EXPECT_EQ(CountedAfterAFailure(/*commits_state=*/false), 2);
}

TEST_F(ModelRoundsTest, TellsEachRoundThatOpens) {
  world_ = std::make_unique<FakeWorld>(1);
  std::vector<uint64_t> opened;
  ModelRoundsOptions options;
  options.executor = &executor_;
  options.runner = &world_->runner(0);
  options.pipeline_factory = SumPipeline;
  options.on_round = [&opened](Round round) { opened.push_back(round.value()); };
  auto rounds = *ModelRounds::Create(PlanOf(Tensors(1, 10), 1, 1000), std::move(options));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Produce(*rounds, SlotId(0), 1).ok());
    ASSERT_TRUE(rounds->WaitRound(In(absl::Seconds(1))).ok());
  }
  EXPECT_EQ(opened, (std::vector<uint64_t>{2, 3, 4}));
}

TEST(ModelRoundsThreadTest, TheWaiterDrivesOrTheThreadDoes) {
  FakeWorld world(1);
  ModelRoundsOptions options;
  options.runner = &world.runner(0);
  options.pipeline_factory = SumPipeline;
  auto rounds = *ModelRounds::Create(PlanOf(Tensors(8, 100), 1, 800), std::move(options));
  for (int round = 1; round <= 200; ++round) {
    for (int32_t slot = 7; slot >= 0; --slot) {
      auto* data = reinterpret_cast<float*>(rounds->DataOf(SlotId(slot)));
      std::fill(data, data + 100, static_cast<float>(round));
      ASSERT_TRUE(rounds->MarkReady(SlotId(slot)).ok());
    }
    ASSERT_TRUE(rounds->EndRound().ok());
    const absl::Status status = rounds->WaitRound(absl::Now() + absl::Seconds(30));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(*reinterpret_cast<float*>(rounds->ResultOf(SlotId(0)).data), round);
  }
}

}  // namespace
}  // namespace pelton
