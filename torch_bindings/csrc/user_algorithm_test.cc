// The stages that a user's operations are made of, and the algorithm that puts them together.
#include "torch_bindings/csrc/user_algorithm.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/clock.h"
#include "core/plan/bucket.h"
#include "core/plan/plan.h"
#include "core/plan/ready_tracker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/averaging_control.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Floats = std::vector<float>;

constexpr uint64_t kCount = 16;

UserMemory MemoryOf(Floats& floats) {
  return {reinterpret_cast<std::byte*>(floats.data()), floats.size(), DType::kFloat32, nullptr};
}
const std::byte* BytesOf(const Floats& floats) {
  return reinterpret_cast<const std::byte*>(floats.data());
}
absl::Time In(absl::Duration time) { return Clock::Real().Now() + time; }
float* FloatsOf(const StageState& state, size_t buffer) {
  return reinterpret_cast<float*>(state.buffers()[buffer].data);
}
void OnAnotherThread(const std::function<void()>& body) { std::thread(body).join(); }

// Keeps "left" and adds one to it, at its second look; and counts its starts in "starts".
// Threads: one. Owns: nothing.
class CountingStage final : public Stage {
 public:
  absl::string_view name() const override { return "counting"; }
  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    auto state = std::make_unique<FlatState>();
    state->Add({.name = "left", .scope = StateScope::kReplica, .count = layout.flat_count});
    state->Add({.name = "starts", .count = 1});
    return state;
  }
  absl::Status Start(BucketRun&, StageState* state) override {
    looks_ = 0;
    *FloatsOf(*state, 1) += 1;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Advance(BucketRun&, StageState* state) override {
    if (++looks_ < 2) return false;
    float* const left = FloatsOf(*state, 0);
    for (uint64_t i = 0; i < kCount; ++i) left[i] += 1;
    return true;
  }

 private:
  int looks_ = 0;
};

// A registered algorithm of what a test says. Threads: as Algorithm. Owns: nothing.
template <DType kDType, uint64_t kAlignment, uint64_t kPeriod = 1>
class Fake : public Algorithm {
 public:
  std::string BytesSent() const override { return "nothing"; }
  PlanConstraints Constraints() const override { return {.alignment_count = kAlignment}; }
  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout&, const Tiers&) override {
    PipelineSpec spec;
    spec.stages.push_back(std::make_unique<CountingStage>());
    spec.period = kPeriod;
    spec.dtypes = {kDType};
    return spec;
  }
};
using Floating = Fake<DType::kFloat32, 4>;
using Whole = Fake<DType::kInt32, 6>;
using Seldom = Fake<DType::kFloat32, 1, 2>;
REGISTER_ALGORITHM(test_floats, "takes floats", Floating);
REGISTER_ALGORITHM(test_ints, "takes integers", Whole);
REGISTER_ALGORITHM(test_seldom, "runs in every second round", Seldom);

// Threads: as Algorithm. Owns: nothing.
class Choosy final : public Floating {
 public:
  std::optional<PeerPolicy> peer_policy() const override { return PeerPolicy::kRandomMatching; }
};
class Windowed final : public Floating {
 public:
  bool UsesWindows() const override { return true; }
};
REGISTER_ALGORITHM(test_choosy, "has peers that the coordinator chooses", Choosy);
REGISTER_ALGORITHM(test_windowed, "uses windows", Windowed);

UserOperation Named(const std::string& algorithm, AlgorithmOptions options = {}) {
  UserOperation operation;
  operation.name = algorithm;
  operation.algorithm = algorithm;
  operation.options = std::move(options);
  return operation;
}
UserOperation Calling() {
  UserOperation operation;
  operation.name = "function";
  operation.function = [] { return absl::OkStatus(); };
  return operation;
}
UserOperation OnReplica(const std::string& name, Floats& replica) {
  UserOperation operation = Named("test_floats");
  operation.replicas = {{name, MemoryOf(replica)}};
  return operation;
}
UserOperation Beside(std::shared_ptr<AveragingControl> control) {
  UserOperation operation = Named("test_floats");
  operation.control = std::move(control);
  return operation;
}
BucketLayout LayoutOf(int32_t bucket) {
  BucketLayout layout;
  layout.id = BucketId(bucket);
  return layout;
}
std::vector<UserOperations> OneBucket(std::vector<UserOperation> operations) {
  return {std::move(operations)};
}

// Stages of an operation on one bucket of one tensor, on rank 0 of two ranks that are driven in
// this thread. Threads: one. Owns: all of it.
class UserStagesTest : public ::testing::Test, public ReadySink {
 protected:
  void OnBucketReady(BucketId, Round) override {}

  static Plan OneTensor() {
    PlanOptions options;
    options.world_size = WorldSize(2);
    return *Plan::Build({{.name = "w", .count = kCount}}, options);
  }
  const BucketLayout& layout() const { return plan_.bucket(BucketId(0)); }
  BucketRun Run(size_t rank = 0) {
    return BucketRun(plan_, layout(), *storage_, tracker_, *communicators_[rank], Round(1));
  }
  std::vector<std::unique_ptr<Stage>> StagesOf(const UserOperation& operation) {
    algorithm_ = *UserAlgorithm::Create(OneBucket({operation}));
    return std::move(algorithm_->StagesFor(layout(), {})->stages);
  }
  float* flat() { return reinterpret_cast<float*>(storage_->FlatOf(BucketId(0))); }
  Floats Held() { return {flat(), flat() + kCount}; }

  // Whether it is done within so many steps of all ranks.
  bool Finishes(Stage& stage, BucketRun& run, StageState* state = nullptr) {
    for (int i = 0; i < 1000; ++i) {
      const absl::StatusOr<bool> done = stage.Advance(run, state);
      EXPECT_TRUE(done.ok()) << done.status();
      if (!done.ok() || *done) return done.ok();
      for (auto& communicator : communicators_) communicator->Progress();
    }
    return false;
  }

  SimFabric fabric_{WorldSize(2)};
  std::vector<std::unique_ptr<Communicator>> communicators_ =
      *fabric_.OpenAll(CommunicatorId(1), Group::World(WorldSize(2)));
  const Plan plan_ = OneTensor();
  const std::unique_ptr<BucketStorage> storage_ = *BucketStorage::Create(plan_, "test");
  ReadyTracker tracker_{plan_, *storage_, *this, Round(1)};
  std::unique_ptr<UserAlgorithm> algorithm_;  // of the last operation
};

TEST(OutcomesTest, ATensorGetsWhatWasAddedLastAndOnlyOnce) {
  Outcomes outcomes;
  Floats target(2, 7);
  Floats other(2, 8);
  Floats first(2, 1);
  Floats second(2, 2);
  EXPECT_EQ(outcomes.LatestOf(MemoryOf(target)), BytesOf(target));
  outcomes.Add(BytesOf(first), MemoryOf(target));
  outcomes.Add(BytesOf(second), MemoryOf(target));
  outcomes.Add(BytesOf(first), MemoryOf(other));
  EXPECT_EQ(outcomes.LatestOf(MemoryOf(target)), BytesOf(second));
  EXPECT_THAT(target, Each(7)) << "the round may yet fail";

  outcomes.Commit();
  EXPECT_THAT(target, Each(2));
  EXPECT_THAT(other, Each(1));
  EXPECT_EQ(outcomes.LatestOf(MemoryOf(target)), BytesOf(target));
  target.assign(2, 9);
  outcomes.Commit();
  EXPECT_THAT(target, Each(9)) << "of a round before";
}

TEST(OutcomesTest, KeepsTheUsersTensorsAlive) {
  auto outcomes = std::make_unique<Outcomes>();
  auto owner = std::make_shared<Floats>(2, 0.0F);
  const std::weak_ptr<Floats> seen = owner;
  UserMemory memory = MemoryOf(*owner);
  memory.owner = std::move(owner);
  const Floats result(2, 1);
  outcomes->Add(BytesOf(result), std::move(memory));
  EXPECT_FALSE(seen.expired());
  outcomes->Commit();
  EXPECT_TRUE(seen.expired());
}

TEST_F(UserStagesTest, ABucketIsWhatItWasBesideAPeerWeight) {
  Floats peer_weight(kCount - 4, 7);  // of a bucket that is padded
  UserOperation operation = Named("test_floats");
  operation.peer_weight = MemoryOf(peer_weight);
  const auto stages = StagesOf(operation);
  BucketRun run = Run();
  for (const float value : {1.0F, 2.0F}) {
    std::fill_n(flat(), kCount, value);
    ASSERT_TRUE(stages.front()->Start(run, nullptr).ok());
    std::fill_n(flat(), kCount, value + 10);  // the operation
    ASSERT_TRUE(stages.back()->Start(run, nullptr).ok());
    EXPECT_THAT(Held(), Each(value));
    std::fill_n(flat(), kCount, -1);  // whatever comes after it
    ASSERT_TRUE(algorithm_->Commit().ok());
    EXPECT_THAT(peer_weight, Each(value + 10));
  }
}

TEST_F(UserStagesTest, AStageWorksOnTheUsersReplica) {
  Floats replica(kCount, 5);
  const std::unique_ptr<Stage> stage = std::move(StagesOf(OnReplica("left", replica)).front());
  const std::unique_ptr<StageState> state = stage->MakeState(layout());
  BucketRun run = Run();
  // Twice in a round: the second one goes on from what the first one has made.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(stage->Start(run, state.get()).ok());
    ASSERT_TRUE(Finishes(*stage, run, state.get()));
  }
  EXPECT_THAT(replica, Each(5)) << "the round may yet fail";
  ASSERT_TRUE(algorithm_->Commit().ok());
  EXPECT_THAT(replica, Each(7));
}

TEST_F(UserStagesTest, AReplicaOfAStageThatIsNotDoneHasNoOutcome) {
  Floats replica(kCount, 5);
  const std::unique_ptr<Stage> stage = std::move(StagesOf(OnReplica("left", replica)).front());
  const std::unique_ptr<StageState> state = stage->MakeState(layout());
  BucketRun run = Run();
  ASSERT_TRUE(stage->Start(run, state.get()).ok());
  EXPECT_FALSE(*stage->Advance(run, state.get()));
  std::fill_n(FloatsOf(*state, 0), kCount, 9);  // so that it differs from the user's
  ASSERT_TRUE(algorithm_->Commit().ok());
  EXPECT_THAT(replica, Each(5));
}

TEST_F(UserStagesTest, AReplicaThatNoStageKeepsIsNamed) {
  Floats replica(kCount, 5);
  const std::unique_ptr<Stage> stage = std::move(StagesOf(OnReplica("right", replica)).front());
  const std::unique_ptr<StageState> state = stage->MakeState(layout());
  BucketRun run = Run();
  EXPECT_EQ(stage->Start(run, state.get()),
            absl::InvalidArgumentError("stage 'counting' keeps no 'right'"));
}

TEST_F(UserStagesTest, OneRanksWishToStopIsNotEnough) {
  const auto agreed = [this](bool first_wants, bool second_wants) {
    std::vector<std::shared_ptr<AveragingControl>> controls;
    std::vector<std::unique_ptr<Stage>> stages;
    std::vector<BucketRun> runs;
    for (size_t rank = 0; rank < 2; ++rank) {
      controls.push_back(std::make_shared<AveragingControl>());
      if (rank == 0 ? first_wants : second_wants) controls.back()->Abort();
      stages.push_back(std::move(StagesOf(Beside(controls.back())).front()));
      runs.push_back(Run(rank));
    }
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(stages[rank]->Start(runs[rank], nullptr).ok());
    }
    EXPECT_FALSE(*stages[0]->Advance(runs[0], nullptr)) << "it waits for the other rank";
    EXPECT_TRUE(controls[0]->is_running());
    for (const size_t rank : {1, 0}) EXPECT_TRUE(Finishes(*stages[rank], runs[rank]));
    EXPECT_EQ(controls[0]->is_running(), controls[1]->is_running());
    return !controls[0]->is_running();
  };
  EXPECT_FALSE(agreed(false, false));
  EXPECT_FALSE(agreed(true, false));
  EXPECT_FALSE(agreed(false, true));
  EXPECT_TRUE(agreed(true, true));
}

TEST_F(UserStagesTest, AStageIsLeftOutOnceTheRanksHaveAgreedToStop) {
  const auto control = std::make_shared<AveragingControl>();
  const std::unique_ptr<Stage> stage = std::move(StagesOf(Beside(control)).back());
  const std::unique_ptr<StageState> state = stage->MakeState(layout());
  const float& counted = *FloatsOf(*state, 0);
  const float& starts = *FloatsOf(*state, 1);
  BucketRun run = Run();
  control->Abort();  // a wish alone stops nothing
  ASSERT_TRUE(stage->Start(run, state.get()).ok());
  EXPECT_FALSE(*stage->Advance(run, state.get()));
  control->set_running(false);  // from the next round on: its operations are under way
  EXPECT_TRUE(*stage->Advance(run, state.get()));
  EXPECT_EQ(counted, 1);
  ASSERT_TRUE(stage->Start(run, state.get()).ok());
  EXPECT_TRUE(*stage->Advance(run, state.get()));
  EXPECT_EQ(counted, 1);
  EXPECT_EQ(starts, 1);
}

TEST(UserAlgorithmTest, AnErrorNamesTheBucket) {
  std::vector<UserOperations> operations(2);
  operations[1].push_back(Named("test_flots"));
  EXPECT_THAT(
      UserAlgorithm::Create(std::move(operations)).status().ToString(),
      AllOf(HasSubstr("NOT_FOUND"), HasSubstr("bucket 1, test_flots"), HasSubstr("test_floats")));
  EXPECT_THAT(
      UserAlgorithm::Create(OneBucket({Named("test_floats", {{"speed", "2"}})}))
          .status()
          .ToString(),
      AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("bucket 0, test_floats"), HasSubstr("speed")));
}

TEST(UserAlgorithmTest, AnOperationThatNeedsTheWholeModelIsRefused) {
  for (const std::string name : {"test_choosy", "test_windowed"}) {
    EXPECT_THAT(UserAlgorithm::Create(OneBucket({Named(name)})).status().ToString(),
                AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("bucket 0, " + name),
                      HasSubstr("for a whole model"), HasSubstr("train the model with")));
  }
}

TEST(UserAlgorithmTest, ABucketFitsAllItsOperations) {
  const auto algorithm =
      *UserAlgorithm::Create(OneBucket({Named("test_floats"), Named("test_ints")}));
  EXPECT_EQ(algorithm->Constraints().alignment_count, 12U);
  EXPECT_TRUE(algorithm->Constraints().packs_slots);
  EXPECT_FALSE(algorithm->Constraints().allows_standalone);
  EXPECT_THAT(algorithm->StagesFor(LayoutOf(0), {}).status().ToString(),
              AllOf(HasSubstr("test_ints"), HasSubstr("none of the dtypes")));
}

TEST(UserAlgorithmTest, AnOperationOfSomeRoundsOnlyIsRefused) {
  const auto algorithm = *UserAlgorithm::Create(OneBucket({Named("test_seldom")}));
  EXPECT_THAT(algorithm->StagesFor(LayoutOf(0), {}).status().ToString(),
              AllOf(HasSubstr("test_seldom"), HasSubstr("mark the tensors less often")));
}

TEST(UserAlgorithmTest, StagesFollowEachOtherAsTheirOperationsWereAppended) {
  Floats peer_weight(kCount);
  UserOperation aside = Beside(std::make_shared<AveragingControl>());
  aside.peer_weight = MemoryOf(peer_weight);
  std::vector<UserOperations> operations(2);
  operations[0] = {Calling(), Named("test_floats"), std::move(aside)};
  const auto algorithm = *UserAlgorithm::Create(std::move(operations));
  const auto names_of = [&algorithm](int32_t bucket) {
    std::vector<std::string> names;
    const PipelineSpec spec = *algorithm->StagesFor(LayoutOf(bucket), {});
    for (const auto& stage : spec.stages) names.emplace_back(stage->name());
    return names;
  };
  EXPECT_THAT(names_of(0),
              ElementsAre("function", "counting", "keep", "agree to stop", "counting", "restore"));
  EXPECT_THAT(names_of(1), ElementsAre("no-op"));
}

TEST(UserAlgorithmTest, UnusedTensorsAreFoundWhereAlgorithmsAloneMakeTheResult) {
  std::vector<UserOperations> operations(3);
  operations[0] = {Named("test_floats"), Calling()};
  operations[1] = {Calling()};
  const auto algorithm = *UserAlgorithm::Create(std::move(operations));
  EXPECT_TRUE(algorithm->FindsUnused(LayoutOf(0)));
  EXPECT_FALSE(algorithm->FindsUnused(LayoutOf(1)));
  EXPECT_FALSE(algorithm->FindsUnused(LayoutOf(2)));
}

TEST(UserAlgorithmTest, RanksCompareNamesAndOptionsOfAlgorithms) {
  const UserOperations operations = {Named("test_floats", {{"average", "true"}}), Calling()};
  EXPECT_EQ(DescribeOperations(operations), "test_floats(average=true), function");
  EXPECT_TRUE(CallsFunctions({{}, operations}));
  EXPECT_FALSE(CallsFunctions({{Named("test_floats")}, {}}));
}

// Threads: the test's, and those it starts. Owns: averagings in the buckets 0 and 2.
class UserAlgorithmLockTest : public ::testing::Test {
 protected:
  static std::unique_ptr<UserAlgorithm> Make(std::shared_ptr<AveragingControl> first,
                                             std::shared_ptr<AveragingControl> last) {
    std::vector<UserOperations> operations(3);
    operations[0].push_back(Beside(std::move(first)));
    operations[1].push_back(Named("test_floats"));
    operations[2].push_back(Beside(std::move(last)));
    return *UserAlgorithm::Create(std::move(operations));
  }
  std::vector<int> AddingToLive() const {
    std::vector<int> buckets;
    for (int bucket = 0; bucket < 3; ++bucket) {
      if (algorithm_->AddsToLive(BucketId(bucket))) buckets.push_back(bucket);
    }
    return buckets;
  }
  static bool IsFree(AveragingControl& control) {
    bool is_free = false;
    OnAnotherThread([&] {
      is_free = control.LockWeights(In(absl::Milliseconds(5))).ok();
      if (is_free) {
        EXPECT_TRUE(control.UnlockWeights().ok());
      }
    });
    return is_free;
  }

  const std::shared_ptr<AveragingControl> first_ = std::make_shared<AveragingControl>();
  const std::shared_ptr<AveragingControl> last_ = std::make_shared<AveragingControl>();
  const std::unique_ptr<UserAlgorithm> algorithm_ = Make(first_, last_);
};

TEST_F(UserAlgorithmLockTest, HoldsTheLocksOfAllAveragingsFromLockToCommit) {
  EXPECT_THAT(AddingToLive(), ElementsAre());
  ASSERT_TRUE(algorithm_->Lock(In(absl::Minutes(1))).ok());
  EXPECT_THAT(AddingToLive(), ElementsAre(0, 2));
  EXPECT_FALSE(IsFree(*first_));
  EXPECT_FALSE(IsFree(*last_));
  EXPECT_TRUE(algorithm_->Commit().ok());
  EXPECT_THAT(AddingToLive(), ElementsAre());
  EXPECT_TRUE(IsFree(*first_));
  EXPECT_TRUE(IsFree(*last_));
}

TEST_F(UserAlgorithmLockTest, TakesNoneWhereOneIsHeld) {
  OnAnotherThread([this] { ASSERT_TRUE(last_->LockWeights(In(absl::Minutes(1))).ok()); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(algorithm_->Lock(In(absl::Milliseconds(5)))));
  EXPECT_TRUE(IsFree(*first_));
  EXPECT_THAT(AddingToLive(), ElementsAre());
  ASSERT_TRUE(last_->UnlockWeights().ok());
  ASSERT_TRUE(last_->LockWeights(In(absl::Minutes(1))).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(algorithm_->Lock(In(absl::Minutes(1)))))
      << "this thread would wait for itself";
  EXPECT_TRUE(IsFree(*first_));
}

TEST_F(UserAlgorithmLockTest, LeavesAnAveragingAloneThatTheRanksHaveStopped) {
  first_->set_running(false);
  ASSERT_TRUE(first_->LockWeights(In(absl::Minutes(1))).ok());
  EXPECT_TRUE(algorithm_->Lock(In(absl::Minutes(1))).ok());
  EXPECT_THAT(AddingToLive(), ElementsAre(2));
  EXPECT_TRUE(algorithm_->Commit().ok());
  EXPECT_TRUE(first_->held_by_this_thread());
}

TEST_F(UserAlgorithmLockTest, ALockThatSomebodyGaveBackIsAnErrorAndTheOthersAreFreeAgain) {
  ASSERT_TRUE(algorithm_->Lock(In(absl::Minutes(1))).ok());
  ASSERT_TRUE(last_->UnlockWeights().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(algorithm_->Commit()));
  EXPECT_TRUE(IsFree(*first_));
}

}  // namespace
}  // namespace pelton::torch_bindings
