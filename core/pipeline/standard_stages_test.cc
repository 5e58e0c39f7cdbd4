#include "core/pipeline/standard_stages.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/draws.h"
#include "core/base/limits.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/bucket.h"
#include "core/plan/plan.h"
#include "core/plan/ready_tracker.h"
#include "core/plan/round_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kMostOpen = limits::kMaxOperationsInFlight / 2;

// Operations end when and how a test says so, in any order.
// Threads: one. Owns: the record.
class ScriptedRunner final : public OperationRunner {
 public:
  absl::StatusOr<Completion> Launch(const Operation& operation, Stream&) override {
    if (!refusal_.ok()) return refusal_;
    if (Open() >= room_) return absl::ResourceExhaustedError("no room");
    launched_.push_back(operation);
    states_.emplace_back();
    return Completion{launched_.size()};
  }
  bool Progress() override { return false; }
  State Query(Completion completion) override { return states_[completion.ticket - 1]; }
  void Park(absl::Time) override {}
  void Wake() override {}
  void Abort(const absl::Status& reason) override { refusal_ = reason; }
  std::vector<Rank> Missing() const override { return {}; }

  // The operation launched as number `index`, from 0, ends.
  void End(size_t index, absl::Status status = absl::OkStatus()) {
    states_[index] = {true, std::move(status)};
  }
  void EndAll() {
    for (size_t i = 0; i < states_.size(); ++i) {
      if (!states_[i].done) End(i);
    }
  }
  size_t Open() const {
    return static_cast<size_t>(
        std::count_if(states_.begin(), states_.end(), [](const State& s) { return !s.done; }));
  }
  void Refuse(absl::Status status) { refusal_ = std::move(status); }
  void set_room(size_t room) { room_ = room; }
  const std::vector<Operation>& launched() const { return launched_; }

 private:
  std::vector<Operation> launched_;
  std::vector<State> states_;
  absl::Status refusal_;
  size_t room_ = limits::kMaxOperationsInFlight;
};

Operation Numbered(uint64_t number) {
  Operation operation;
  operation.kind = OperationKind::kAllReduce;
  operation.count = number;
  return operation;
}

// Threads: one. Owns: a bucket of a flat part and a standalone tensor, and a runner.
class StandardStagesTest : public ::testing::Test, public ReadySink {
 protected:
  void OnBucketReady(BucketId, Round) override {}

  static Plan MakePlan() {
    PlanOptions options;
    options.standalone_bytes = 400;
    return *Plan::Build({{"large", DType::kFloat64, 100}, {"small", DType::kFloat64, 3}}, options);
  }
  BucketRun RunOf(uint64_t round) {
    return BucketRun(plan_, plan_.bucket(BucketId(0)), *storage_, tracker_, runner_, Round(round));
  }
  // The counts of what was launched, in order: the numbers of Numbered.
  std::vector<uint64_t> Launched() const {
    std::vector<uint64_t> counts;
    for (const Operation& operation : runner_.launched()) counts.push_back(operation.count);
    return counts;
  }

  const Plan plan_ = MakePlan();
  std::unique_ptr<BucketStorage> storage_ = *BucketStorage::Create(plan_, "test");
  ReadyTracker tracker_{plan_, *storage_, *this, Round(1)};
  std::vector<double> large_ = std::vector<double>(100);
  ScriptedRunner runner_;
};

TEST_F(StandardStagesTest, ABatchOfNothingIsDone) {
  BucketRun run = RunOf(1);
  OperationBatch batch;
  EXPECT_TRUE(*batch.Advance(run));
  EXPECT_TRUE(batch.has_launched_all());
}

TEST_F(StandardStagesTest, ABatchIsDoneWhenAllOfItIs) {
  BucketRun run = RunOf(1);
  OperationBatch batch;
  for (uint64_t number : {1, 2, 3}) batch.Add(Numbered(number));
  EXPECT_FALSE(batch.has_launched_all());
  EXPECT_FALSE(*batch.Advance(run));
  EXPECT_TRUE(batch.has_launched_all());
  EXPECT_THAT(Launched(), ElementsAre(1, 2, 3));
  runner_.End(2);
  EXPECT_FALSE(*batch.Advance(run));
  EXPECT_EQ(batch.finished(), 0u) << "the first one is not done";
  runner_.End(0);
  EXPECT_FALSE(*batch.Advance(run));
  EXPECT_EQ(batch.finished(), 1u);
  runner_.End(1);
  EXPECT_TRUE(*batch.Advance(run));
  EXPECT_EQ(batch.finished(), 3u);
  EXPECT_THAT(Launched(), ElementsAre(1, 2, 3)) << "each once";
}

TEST_F(StandardStagesTest, ABatchServesAgainOnceItIsCleared) {
  BucketRun run = RunOf(1);
  OperationBatch batch;
  batch.Add(Numbered(1));
  EXPECT_FALSE(*batch.Advance(run));
  runner_.EndAll();
  EXPECT_TRUE(*batch.Advance(run));
  batch.Clear();
  EXPECT_EQ(batch.finished(), 0u);
  batch.Add(Numbered(2));
  batch.Add(Numbered(3));
  EXPECT_FALSE(*batch.Advance(run));
  EXPECT_THAT(Launched(), ElementsAre(1, 2, 3));
  runner_.EndAll();
  EXPECT_TRUE(*batch.Advance(run));
}

// Two buckets may launch at once, so that neither may take all the room that a runner has.
TEST_F(StandardStagesTest, ABatchHasHalfOfTheRunnersRoomOpenAtMost) {
  BucketRun run = RunOf(1);
  OperationBatch batch;
  const size_t count = 2 * kMostOpen + 5;
  for (uint64_t number = 1; number <= count; ++number) batch.Add(Numbered(number));
  EXPECT_FALSE(*batch.Advance(run));
  EXPECT_EQ(runner_.launched().size(), kMostOpen);
  runner_.End(1);
  EXPECT_FALSE(*batch.Advance(run));
  EXPECT_EQ(runner_.launched().size(), kMostOpen) << "behind one that is not done";
  runner_.End(0);
  EXPECT_FALSE(*batch.Advance(run));
  EXPECT_FALSE(*batch.Advance(run));
  EXPECT_EQ(runner_.launched().size(), kMostOpen + 2);
  EXPECT_FALSE(batch.has_launched_all());
  while (!*batch.Advance(run)) runner_.EndAll();
  EXPECT_EQ(runner_.launched().size(), count);
  for (size_t i = 0; i < count; ++i) EXPECT_EQ(runner_.launched()[i].count, i + 1);
}

TEST_F(StandardStagesTest, ABatchWaitsForRoomThatOthersHave) {
  BucketRun run = RunOf(1);
  OperationBatch batch;
  for (uint64_t number : {1, 2, 3}) batch.Add(Numbered(number));
  runner_.set_room(0);
  EXPECT_FALSE(*batch.Advance(run));
  EXPECT_THAT(Launched(), IsEmpty());
  runner_.set_room(2);
  EXPECT_FALSE(*batch.Advance(run));
  EXPECT_THAT(Launched(), ElementsAre(1, 2));
  runner_.EndAll();
  EXPECT_FALSE(*batch.Advance(run));
  EXPECT_THAT(Launched(), ElementsAre(1, 2, 3));
  EXPECT_EQ(run.launch_count(), 3u) << "a launch that was refused does not count";
}

TEST_F(StandardStagesTest, ABatchEndsByTheErrorOfALaunchOrOfAnOperation) {
  BucketRun run = RunOf(1);
  OperationBatch batch;
  batch.Add(Numbered(1));
  batch.Add(Numbered(2));
  runner_.Refuse(absl::UnavailableError("rank 1 has died"));
  EXPECT_THAT(batch.Advance(run).status().ToString(), HasSubstr("rank 1 has died"));
  EXPECT_THAT(Launched(), IsEmpty());

  runner_.Refuse(absl::OkStatus());
  EXPECT_FALSE(*batch.Advance(run));
  runner_.End(0);
  runner_.End(1, absl::AbortedError("the second has failed"));
  EXPECT_THAT(batch.Advance(run).status().ToString(), HasSubstr("the second has failed"));
  EXPECT_EQ(batch.finished(), 1u);
}

TEST_F(StandardStagesTest, AllReduceTakesEverySegmentInPlace) {
  ASSERT_TRUE(tracker_.MarkReady(SlotId(0), large_.data()).ok());
  const std::unique_ptr<Stage> stage = MakeAllReduceStage(ReduceOp::kMax);
  EXPECT_EQ(stage->name(), "allreduce");
  EXPECT_TRUE(stage->takes_device_memory());
  for (uint64_t round : {1, 2}) {
    BucketRun run = RunOf(round);
    ASSERT_TRUE(stage->Start(run, nullptr).ok());
    EXPECT_FALSE(stage->has_launched_all());
    EXPECT_FALSE(*stage->Advance(run, nullptr));
    EXPECT_TRUE(stage->has_launched_all());
    ASSERT_EQ(runner_.launched().size(), 2 * round);
    const Operation& flat = runner_.launched()[2 * round - 2];
    const Operation& alone = runner_.launched()[2 * round - 1];
    EXPECT_EQ(flat.source(), (Location{storage_->region()->id(), 0}));
    EXPECT_EQ(flat.count, plan_.bucket(BucketId(0)).flat_count);
    EXPECT_EQ(alone.source(), Locate(large_.data(), 800));
    EXPECT_EQ(alone.count, 100u);
    for (const Operation& each : {flat, alone}) {
      EXPECT_EQ(each.kind, OperationKind::kAllReduce);
      EXPECT_EQ(each.reduce_op, ReduceOp::kMax);
      EXPECT_EQ(each.dtype, DType::kFloat64);
      EXPECT_EQ(each.target(), each.source());
    }
    runner_.EndAll();
    EXPECT_TRUE(*stage->Advance(run, nullptr));
  }
}

TEST_F(StandardStagesTest, AnotherBucketFollowsOperationsUnlessTheStageSaysNo) {
  for (const bool next_may_follow : {true, false}) {
    BucketRun run = RunOf(1);
    const auto stage = MakeOperationStage(
        "two",
        [](const BucketRun&, OperationBatch& batch) {
          batch.Add(Numbered(1));
          batch.Add(Numbered(2));
        },
        next_may_follow);
    ASSERT_TRUE(stage->Start(run, nullptr).ok());
    EXPECT_FALSE(*stage->Advance(run, nullptr));
    EXPECT_EQ(stage->has_launched_all(), next_may_follow);
  }
  EXPECT_THAT(Launched(), ElementsAre(1, 2, 1, 2));
}

TEST_F(StandardStagesTest, ALocalStageIsDoneAtOnceAndKeepsWhatItIsGiven) {
  const auto count_round = [](const BucketRun&, absl::Span<const StateBuffer> kept) {
    ++*reinterpret_cast<int32_t*>(kept[1].data);
  };
  const auto stage = MakeLocalStage(
      "count", count_round,
      {{.name = "weights", .dtype = DType::kFloat64, .begins_as_weights = true, .count = 3},
       {.name = "rounds", .dtype = DType::kInt32, .scope = StateScope::kCommon, .count = 1}});
  const std::unique_ptr<StageState> state = stage->MakeState(plan_.bucket(BucketId(0)));
  auto* const flat = reinterpret_cast<double*>(storage_->FlatOf(BucketId(0)));
  flat[2] = 7;
  stage->Prime(plan_.bucket(BucketId(0)), storage_->FlatOf(BucketId(0)), *state);
  for (uint64_t round : {1, 2}) {
    BucketRun run = RunOf(round);
    ASSERT_TRUE(stage->Start(run, state.get()).ok());
    EXPECT_TRUE(*stage->Advance(run, state.get()));
  }
  EXPECT_EQ(reinterpret_cast<const double*>(state->buffers()[0].data)[2], 7);
  EXPECT_EQ(*reinterpret_cast<const int32_t*>(state->buffers()[1].data), 2);
  EXPECT_EQ(state->buffers()[1].scope, StateScope::kCommon);
}

TEST_F(StandardStagesTest, ALocalStageIsLeftOutWhereThereAreNoElements) {
  BucketLayout empty = plan_.bucket(BucketId(0));
  empty.flat_count = 0;
  BucketRun run(plan_, empty, *storage_, tracker_, runner_, Round(1));
  bool has_run = false;
  const auto stage = MakeLocalStage("step", [&has_run](auto&&...) { has_run = true; });
  EXPECT_EQ(stage->MakeState(empty), nullptr);
  ASSERT_TRUE(stage->Start(run, nullptr).ok());
  EXPECT_TRUE(*stage->Advance(run, nullptr));
  EXPECT_FALSE(has_run);
}

// Counts, in its state, the rounds in which it runs; it needs a second Advance in each.
// Threads: one. Owns: nothing.
class CountingStage final : public Stage {
 public:
  absl::string_view name() const override { return "counting"; }
  bool takes_device_memory() const override { return true; }
  bool has_launched_all() const override { return true; }
  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    return std::make_unique<FlatState>(layout, DType::kInt32,
                                       std::initializer_list<absl::string_view>{"count"});
  }
  void Prime(const BucketLayout&, const std::byte*, StageState& state) const override {
    CountIn(&state) = 100;
  }
  absl::Status Start(BucketRun&, StageState* state) override {
    has_waited_ = false;
    ++CountIn(state);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Advance(BucketRun&, StageState*) override {
    return std::exchange(has_waited_, true);
  }
  static int32_t& CountIn(StageState* state) {
    return *reinterpret_cast<int32_t*>(state->buffers()[0].data);
  }

 private:
  bool has_waited_ = false;
};

TEST_F(StandardStagesTest, AStageOfRoundsRunsInMultiplesOrInTheOthers) {
  for (const auto& [which, expected] : {std::pair(WhichRounds::kMultiples, std::vector{3, 6}),
                                        std::pair(WhichRounds::kOthers, std::vector{1, 2, 4, 5})}) {
    const auto stage = MakeStageOfRounds(std::make_unique<CountingStage>(), which, 3);
    EXPECT_EQ(stage->name(), "counting");
    const std::unique_ptr<StageState> state = stage->MakeState(plan_.bucket(BucketId(0)));
    stage->Prime(plan_.bucket(BucketId(0)), storage_->FlatOf(BucketId(0)), *state);
    std::vector<int> rounds;
    for (int round = 1; round <= 6; ++round) {
      BucketRun run = RunOf(static_cast<uint64_t>(round));
      const int32_t before = CountingStage::CountIn(state.get());
      ASSERT_TRUE(stage->Start(run, state.get()).ok());
      const bool runs = CountingStage::CountIn(state.get()) != before;
      EXPECT_EQ(*stage->Advance(run, state.get()), !runs);
      EXPECT_TRUE(*stage->Advance(run, state.get()));
      if (runs) rounds.push_back(round);
    }
    EXPECT_EQ(rounds, expected);
    EXPECT_EQ(CountingStage::CountIn(state.get()), 100 + static_cast<int32_t>(expected.size()));
  }
}

// What the stage that it leads to says of rounds in which it runs is of no use in the others.
TEST_F(StandardStagesTest, AStageOfRoundsLaunchesInItsTurn) {
  const auto stage =
      MakeStageOfRounds(std::make_unique<CountingStage>(), WhichRounds::kMultiples, 2);
  EXPECT_FALSE(stage->has_launched_all());
}

TEST_F(StandardStagesTest, AStageOfRoundsTakesTheMemoryThatItsStageTakes) {
  const auto of = [](std::unique_ptr<Stage> stage) {
    return MakeStageOfRounds(std::move(stage), WhichRounds::kMultiples, 2);
  };
  EXPECT_TRUE(of(std::make_unique<CountingStage>())->takes_device_memory());
  EXPECT_FALSE(of(of(MakeLocalStage("host", [](auto&&...) {})))->takes_device_memory());
}

TEST_F(StandardStagesTest, NoRoundIsAMultipleOfZero) {
  for (uint64_t round : {1, 2, 3}) {
    EXPECT_FALSE(IsMultiple(RunOf(round), 0));
    EXPECT_TRUE(IsMultiple(RunOf(round), 1));
  }
}

TEST_F(StandardStagesTest, ARunLaunchesForItsBucketInTheModeOfItsRound) {
  tracker_.set_mode(RoundMode::kEvaluation);
  BucketRun run = RunOf(1);
  EXPECT_EQ(run.launch_count(), 0u);
  Operation operation = Numbered(7);
  operation.bucket = BucketId(55);
  ASSERT_TRUE(run.Launch(operation).ok());
  EXPECT_EQ(runner_.launched()[0].bucket, InMode(BucketId(0), RoundMode::kEvaluation));
  EXPECT_EQ(run.last_operation().bucket, runner_.launched()[0].bucket);
  EXPECT_EQ(run.last_operation().count, 7u);
  EXPECT_EQ(run.launch_count(), 1u);
  EXPECT_EQ(run.mode(), RoundMode::kEvaluation);
}

TEST_F(StandardStagesTest, ARunIsDrainedWhenAllIsDoneInWhicheverWay) {
  BucketRun run = RunOf(1);
  EXPECT_TRUE(run.Drained());
  for (uint64_t number : {1, 2, 3}) ASSERT_TRUE(run.Launch(Numbered(number)).ok());
  runner_.End(1);
  runner_.End(2, absl::AbortedError("failed"));
  EXPECT_FALSE(run.Drained());
  runner_.End(0);
  EXPECT_TRUE(run.Drained());
  EXPECT_EQ(run.OnDevice(), std::nullopt) << "the bucket is in the host's memory";
}

// All ranks find that, so that the round's end may be told from one that only some ranks know of.
TEST_F(StandardStagesTest, ARunKnowsThatTheRanksDisagreedFromNoOtherFailure) {
  BucketRun run = RunOf(1);
  const Completion first = *run.Launch(Numbered(1));
  const Completion second = *run.Launch(Numbered(2));
  runner_.End(0, absl::AbortedError("failed"));
  EXPECT_TRUE(run.Query(first).done);
  EXPECT_FALSE(run.disagreed());
  EXPECT_FALSE(run.Query(second).done);
  runner_.End(1, absl::InvalidArgumentError("count is 2 on rank 0 and 3 on rank 1"));
  EXPECT_TRUE(run.Query(second).done);
  EXPECT_TRUE(run.disagreed());
}

// More launches in a round than a runner has room for, as long as they end in between.
TEST_F(StandardStagesTest, ARunMayLaunchMoreThanARunnerHasRoomFor) {
  BucketRun run = RunOf(1);
  for (uint64_t number = 1; number <= 3 * limits::kMaxOperationsInFlight; ++number) {
    ASSERT_TRUE(run.Launch(Numbered(number)).ok()) << number;
    runner_.EndAll();
  }
  EXPECT_TRUE(run.Drained());
  EXPECT_EQ(run.launch_count(), 3 * limits::kMaxOperationsInFlight);
}

// Operations end, are refused and go on in any order: each is launched once, in the order in which
// it was added, and the batch is done when the last one is.
TEST_F(StandardStagesTest, BatchesLaunchEachOnceInOrderWhateverEndsFirst) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Draws draws(seed);
    runner_ = ScriptedRunner();
    BucketRun run = RunOf(1);
    OperationBatch batch;
    const uint64_t count = 1 + draws.Below(300);
    for (uint64_t number = 1; number <= count; ++number) batch.Add(Numbered(number));
    bool done = false;
    for (int step = 0; !done && step < 5000; ++step) {
      runner_.set_room(draws.Below(limits::kMaxOperationsInFlight));
      done = *batch.Advance(run);
      ASSERT_EQ(done, runner_.launched().size() == count && runner_.Open() == 0);
      ASSERT_LE(runner_.Open(), kMostOpen);
      for (uint64_t ends = draws.Below(40); ends > 0 && !runner_.launched().empty(); --ends) {
        runner_.End(draws.Below(runner_.launched().size()));
      }
      if (draws.OneIn(10)) runner_.EndAll();
      done = done ||
             (runner_.launched().size() == count && runner_.Open() == 0 && *batch.Advance(run));
    }
    ASSERT_TRUE(done);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(runner_.launched()[i].count, i + 1);
  }
}

}  // namespace
}  // namespace pelton
