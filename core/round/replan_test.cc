// How the ranks agree, and move to another plan between rounds.
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/memory/dtype.h"
#include "core/pipeline/fake_world.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"
#include "core/plan/plan.h"
#include "core/round/model_rounds.h"
#include "core/round/model_rounds_fixture.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ReplanTest = ModelRoundsTest;

TEST_F(ReplanTest, ReplansBetweenRounds) {
  Start(PlanOf(Tensors(4, 100), 1, 800), 1);
  for (int32_t slot : {1, 3, 0, 2}) ASSERT_TRUE(Produce(*ranks_[0], SlotId(slot), 1).ok());
  EXPECT_EQ(ranks_[0]->Replan({{SlotId(0)}}, In(absl::Seconds(1))).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(ranks_[0]->WaitRound(In(absl::Seconds(1))).ok());
  const auto order = ranks_[0]->AgreeOnOrder(In(absl::Seconds(1)));
  ASSERT_TRUE(order.ok()) << order.status();
  ASSERT_TRUE(ranks_[0]->Replan(*order, In(absl::Seconds(1))).ok());
  EXPECT_EQ(ranks_[0]->plan().version(), PlanVersion(2));
  EXPECT_EQ(ranks_[0]->plan().bucket(BucketId(0)).slots,
            (std::vector<SlotId>{SlotId(1), SlotId(3)}));
  EXPECT_EQ(ranks_[0]->round(), Round(2));
  ProduceAll(7);
  ASSERT_TRUE(ranks_[0]->WaitRound(In(absl::Seconds(1))).ok());
  EXPECT_EQ(First(*ranks_[0], SlotId(2)), 7);
}

// A bucket's elements behind its slots' are part of what codecs see.
TEST_F(ReplanTest, BucketsOfAnotherSizeLieInTheSameMemory) {
  Start(PlanOf(Tensors(6, 100), 2, 5000), 2);
  const std::vector<SlotId> order = {SlotId(5), SlotId(3), SlotId(4),
                                     SlotId(0), SlotId(1), SlotId(2)};
  const std::byte* memory = nullptr;
  float base = 1;
  for (uint64_t size : {400u, 900u, 5000u, 400u, 1u << 20}) {
    ProduceAll(base);
    for (auto& rank : ranks_) {
      ASSERT_TRUE(rank->EndRound().ok());
      ASSERT_TRUE(rank->WaitRound(In(absl::Seconds(1))).ok());
      for (int32_t slot = 0; slot < 6; ++slot) {
        EXPECT_EQ(First(*rank, SlotId(slot)), 2 * base + 1) << "before " << size;
      }
    }
    for (auto& rank : ranks_) ASSERT_TRUE(rank->Resize(order, size, In(absl::Seconds(1))).ok());
    const ModelRounds& first = *ranks_.front();
    const std::byte* const now = first.DataOf(SlotId(5));  // of the first bucket, the first
    if (memory != nullptr) {
      EXPECT_EQ(now, memory) << "it was made for every size: " << size;
    }
    memory = now;
    EXPECT_EQ(first.plan().options().bucket_size_bytes, size);
    for (const BucketLayout& bucket : first.plan().buckets()) {
      const auto* const begin = reinterpret_cast<const float*>(first.DataOf(bucket.slots.front()));
      float sum = 0;
      for (uint64_t i = bucket.content_count; i < bucket.flat_count; ++i) sum += begin[i];
      EXPECT_EQ(sum, 0) << "behind bucket " << bucket.id << " of " << size;
    }
    base *= 3;
  }
  EXPECT_EQ(ranks_[0]->Resize(order, 0, In(absl::Seconds(1))).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ReplanTest, RanksAgreeOnTheWordsOfRankZero) {
  Start(PlanOf(Tensors(1, 10), 2, 100), 2);
  EXPECT_EQ(ranks_[0]->Agreed(In(absl::Seconds(1))).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(ranks_[0]->BeginAgreement({7, -8, 9}).ok());
  ASSERT_TRUE(ranks_[1]->BeginAgreement({0, 0, 0}).ok());
  for (auto& rank : ranks_) {
    const auto words = rank->Agreed(In(absl::Seconds(1)));
    ASSERT_TRUE(words.ok()) << words.status();
    EXPECT_EQ(*words, (std::vector<int32_t>{7, -8, 9}));
  }
}

TEST_F(ReplanTest, AnAgreementThatFailsSaysOfWhichModelAndIsReported) {
  Start(PlanOf(Tensors(1, 10), 2, 100), 2, absl::Seconds(5));
  ASSERT_TRUE(ranks_[1]->BeginOrder().ok());
  const absl::Status status = ranks_[1]->AgreeOnOrder(In(absl::Hours(1))).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(absl::StartsWith(status.message(),
                               "model 'model', rank 1, round 1: agreeing with rank 0 on the next "
                               "plan: broadcast"))
      << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "waiting for rank 0")) << status;
  EXPECT_EQ(failures_, (std::vector<absl::Status>{status}));
}

// Keeps an element for each of its bucket's.
// Threads: one. Owns: nothing.
class KeepingStage final : public Stage {
 public:
  explicit KeepingStage(StateScope scope) : scope_(scope) {}
  absl::string_view name() const override { return "keep"; }
  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    return std::make_unique<FlatState>(layout, DType::kFloat32,
                                       std::initializer_list<absl::string_view>{"kept"}, scope_);
  }
  absl::Status Start(BucketRun&, StageState*) override { return absl::OkStatus(); }

 private:
  const StateScope scope_;
};

TEST_F(ReplanTest, OnlyWhatOneRankKeepsAloneIsGatheredForThePlanThatFollows) {
  const auto launches_of_an_agreement = [this](StateScope scope) {
    FakeWorld world(1);
    ModelRoundsOptions options;
    options.executor = &executor_;
    options.runner = &world.runner(0);
    options.pipeline_factory = [scope](const BucketLayout& layout) {
      PipelineSpec spec;
      spec.stages.push_back(std::make_unique<KeepingStage>(scope));
      spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
      return Pipeline::Build(std::move(spec), layout);
    };
    auto rounds = *ModelRounds::Create(PlanOf(Tensors(2, 10), 1, 1000), std::move(options));
    EXPECT_TRUE(rounds->AgreeOnOrder(In(absl::Seconds(1))).ok());
    return world.runner(0).launches().size();
  };
  EXPECT_EQ(launches_of_an_agreement(StateScope::kShared), 3u);  // its names, and a sum of it
  for (const StateScope scope :
       {StateScope::kCommon, StateScope::kOwn, StateScope::kReplica, StateScope::kPassedOn}) {
    EXPECT_EQ(launches_of_an_agreement(scope), 1u);
  }
}

TEST_F(ReplanTest, RefusesToReplanWithinARound) {
  Start(PlanOf(Tensors(2, 100), 1, 400), 1);
  ASSERT_TRUE(Produce(*ranks_[0], SlotId(1), 1).ok());
  const std::vector<SlotId> order{SlotId(0), SlotId(1)};
  EXPECT_EQ(ranks_[0]->Replan(order, In(absl::Seconds(1))).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ranks_[0]->plan().version(), PlanVersion(1));
}

TEST_F(ReplanTest, APlanThatTheSchedulerTakesTooLateEndsTheRoundsAndLivesOn) {
  Start(PlanOf(Tensors(4, 100), 1, 800), 1);
  const std::vector<SlotId> order{SlotId(1), SlotId(3), SlotId(0), SlotId(2)};
  executor_.SetFaults({.delay_one_in = 1});  // no actor has a turn
  const absl::Status late = ranks_[0]->Replan(order, In(absl::Milliseconds(1)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_TRUE(absl::StrContains(late.message(),
                                "model 'model', rank 0, round 1: the scheduler has not answered"))
      << late;
  EXPECT_EQ(ranks_[0]->plan().version(), PlanVersion(1));
  executor_.SetFaults({});
  executor_.RunFor(absl::Seconds(1));
  ProduceAll(1);
  const absl::Status status = ranks_[0]->WaitRound(In(absl::Seconds(1)));
  EXPECT_TRUE(absl::StrContains(status.message(), "has not answered")) << status;
}

}  // namespace
}  // namespace pelton
