#include "backend/averaging_loop.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "comm/communicator.h"
#include "comm/tiers.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/actor/actor.h"
#include "core/actor/context.h"
#include "core/actor/monitor.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kCount = 24;
constexpr absl::Duration kRoundTimeout = absl::Seconds(20);
constexpr absl::Duration kStopTimeout = absl::Seconds(15);

// One rank's weights, rounds and loop.
// Threads: the simulation's, or as AveragingLoop. Owns: all but executor and communicator.
class LoopRank {
 public:
  LoopRank(Communicator& communicator, Executor* executor, absl::Duration pause)
      : communicator_(communicator), weights_(kCount, 0) {
    ModelRoundsOptions rounds;
    rounds.rank = communicator.rank();
    rounds.executor = executor;
    rounds.runner = &communicator;
    rounds.pipeline_factory = [this](const BucketLayout& layout) {
      return MakePipeline(*algorithm_, layout, Tiers::Of(communicator_));
    };
    rounds.operation_timeout = kRoundTimeout;
    rounds.on_failure = [this](const absl::Status& reason) {
      told_.emplace_back(reason.message());
    };
    rounds.on_round = [this](Round) {
      if (throws_in_turn_) throw std::runtime_error("the loop's own bug");
    };
    PlanOptions plan;
    plan.world_size = communicator.world_size();
    plan.constraints = algorithm_->Constraints();
    plan.bucket_size_bytes = 64;
    rounds_ = *ModelRounds::Create(
        *Plan::Build({{"weights", DType::kFloat32, kCount, {}}, AveragingLoop::StopTensor()}, plan),
        std::move(rounds));
    AveragingLoopOptions options;
    options.pause = pause;
    options.round_timeout = kRoundTimeout;
    options.executor = executor;
    options.copy_in = [this](SlotId slot, std::byte* target) {
      EXPECT_EQ(slot, SlotId(0));
      EXPECT_FALSE(is_held_) << "a snapshot of weights that are claimed";
      if (throws_in_copy_) throw std::runtime_error("resized before the copy");
      std::memcpy(target, weights_.data(), kCount * sizeof(float));
      return absl::OkStatus();
    };
    options.add = [this](SlotId slot, const std::byte* difference) {
      EXPECT_EQ(slot, SlotId(0));
      EXPECT_FALSE(is_held_) << "a result added to weights that are claimed";
      if (throws_in_add_) throw std::runtime_error("resized before the sum");
      for (uint64_t i = 0; i < kCount; ++i) {
        weights_[i] += reinterpret_cast<const float*>(difference)[i];
      }
      ++added_;
    };
    loop_ = *AveragingLoop::Create(*rounds_, std::move(options));
  }

  // What a step of training does, while the weights are claimed.
  void Train(float step) {
    for (float& weight : weights_) weight += step;
    trained_ += static_cast<double>(step) * kCount;
  }

  void set_held(bool is_held) { is_held_ = is_held; }
  void ThrowInCopy() { throws_in_copy_ = true; }
  void ThrowInAdd() { throws_in_add_ = true; }
  void ThrowInTurn() { throws_in_turn_ = true; }
  // What the rounds have said of their failure.
  const std::vector<std::string>& told() const { return told_; }
  AveragingLoop& loop() { return *loop_; }
  ModelRounds& rounds() { return *rounds_; }
  const std::vector<float>& weights() const { return weights_; }
  double trained() const { return trained_; }
  int added() const { return added_; }

 private:
  Communicator& communicator_;
  const std::unique_ptr<Algorithm> algorithm_ = *MakeAlgorithm("async_model_average", {});
  std::vector<float> weights_;
  double trained_ = 0;
  std::atomic<bool> is_held_{false};  // atomic for the test with threads
  std::atomic<int> added_{0};
  bool throws_in_copy_ = false;
  bool throws_in_add_ = false;
  bool throws_in_turn_ = false;
  std::vector<std::string> told_;
  std::unique_ptr<ModelRounds> rounds_;
  std::unique_ptr<AveragingLoop> loop_;  // last: it runs the rounds
};

struct TrainFor {
  int steps;
};
struct EndStep {};

// Trains and then asks to stop, again and again as it is told.
// Threads: its turns. Owns: nothing of the rank.
class Trainer final : public Actor {
 public:
  Trainer(LoopRank* rank, SimExecutor* executor) : rank_(*rank), executor_(*executor) {}

  void Handle(TrainFor message) {
    left_ = message.steps;
    BeginStep();
  }

  void Handle(EndStep) {
    rank_.Train(static_cast<float>(1 + executor_.Uniform(8)));
    rank_.set_held(false);
    rank_.loop().Release();
    --left_;
    context().SendAfter(*this, Delay(200), NextStep{});
  }

  struct NextStep {};
  void Handle(NextStep) { BeginStep(); }

  // How often Stop has been answered, and with what.
  int stops() const { return stops_; }
  const absl::Status& stop_status() const { return stop_status_; }
  const absl::Status& claim_status() const { return claim_status_; }

 private:
  absl::Duration Delay(uint64_t microseconds) {
    return absl::Microseconds(static_cast<int64_t>(executor_.Uniform(microseconds)));
  }

  void BeginStep() {
    if (left_ <= 0) return AskToStop();
    const absl::Time asked = context().Now();
    context().Then(rank_.loop().RequestClaim(), [this, asked](absl::Status status) {
      EXPECT_EQ(context().Now(), asked) << "a claim waited for more than a copy";
      claim_status_ = std::move(status);
      rank_.set_held(true);
      // Now and then a rank is slow.
      context().SendAfter(*this, Delay(executor_.Uniform(10) == 0 ? 50000 : 500), EndStep{});
    });
  }

  void AskToStop() {
    const absl::Time deadline = context().Now() + kStopTimeout;
    context().Then(rank_.loop().RequestStop(deadline), [this](absl::Status status) {
      stop_status_ = std::move(status);
      ++stops_;
    });
  }

  LoopRank& rank_;
  SimExecutor& executor_;
  int left_ = 0;
  int stops_ = 0;
  absl::Status stop_status_;
  absl::Status claim_status_;
};

// Threads: one. Owns: the world of one seed.
class LoopWorld {
 public:
  explicit LoopWorld(uint64_t seed, int32_t size)
      : executor_(seed), fabric_(WorldSize(size), NetworkOf(seed)) {
    executor_.AddEventSource(&fabric_);
    communicators_ = *fabric_.OpenAll(CommunicatorId(1), Group::World(WorldSize(size)));
    const auto pause = absl::Microseconds(static_cast<int64_t>(executor_.Uniform(400)));
    for (auto& communicator : communicators_) {
      ranks_.push_back(std::make_unique<LoopRank>(*communicator, &executor_, pause));
      refs_.push_back(Spawn<Trainer>(executor_, {}, ranks_.back().get(), &executor_));
      trainers_.push_back(static_cast<Trainer*>(refs_.back().cell()->actor()));
    }
  }
  ~LoopWorld() {
    // A trainer that is told to stop is ended at once: it may wait for what will not come.
    for (ActorRef<Trainer>& trainer : refs_) StopAndWait(trainer, executor_.Now()).IgnoreError();
    ranks_.clear();
    communicators_.clear();
    executor_.RemoveEventSource(&fabric_);
  }

  void ResumeAll() {
    for (auto& rank : ranks_) EXPECT_TRUE(rank->loop().Resume().ok());
  }
  void Train(int32_t rank, int steps) {
    ASSERT_TRUE(refs_[static_cast<size_t>(rank)].Send(TrainFor{steps}).ok());
  }
  // Until every rank has stopped for the `count`-th time.
  bool RunUntilStopped(int count) {
    return executor_.RunUntil(
        [&] {
          return std::all_of(trainers_.begin(), trainers_.end(),
                             [&](const Trainer* trainer) { return trainer->stops() >= count; });
        },
        executor_.Now() + kStopTimeout + kRoundTimeout);
  }

  // Averaging neither makes nor loses weight.
  void ExpectSumIsKept() {
    double sum = 0;
    double trained = 0;
    for (auto& rank : ranks_) {
      for (float weight : rank->weights()) sum += static_cast<double>(weight);
      trained += rank->trained();
    }
    EXPECT_NEAR(sum, trained, 1e-4 * trained + 1e-3);
  }
  // Nobody trains between its wish to stop and the end.
  void ExpectEqualWeights() {
    for (auto& rank : ranks_) {
      for (uint64_t i = 0; i < kCount; ++i) {
        EXPECT_NEAR(rank->weights()[i], ranks_[0]->weights()[i],
                    1e-5 * std::abs(ranks_[0]->weights()[i]));
      }
    }
  }
  void ExpectEndedTogether() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      EXPECT_TRUE(trainers_[rank]->stop_status().ok()) << trainers_[rank]->stop_status();
      EXPECT_TRUE(trainers_[rank]->claim_status().ok()) << trainers_[rank]->claim_status();
      EXPECT_EQ(ranks_[rank]->rounds().round(), ranks_[0]->rounds().round()) << "rank " << rank;
      EXPECT_EQ(ranks_[rank]->added(), ranks_[0]->added()) << "rank " << rank;
    }
  }

  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  SimExecutor& executor() { return executor_; }
  SimFabric& fabric() { return fabric_; }
  LoopRank& rank(int32_t rank) { return *ranks_[static_cast<size_t>(rank)]; }
  Trainer& trainer(int32_t rank) { return *trainers_[static_cast<size_t>(rank)]; }

 private:
  SimOptions NetworkOf(uint64_t seed) {
    SimOptions options;
    options.seed = seed;
    options.clock = &executor_.clock();
    options.link.latency = absl::Microseconds(static_cast<int64_t>(executor_.Uniform(300)));
    options.link.jitter = absl::Microseconds(static_cast<int64_t>(1 + executor_.Uniform(300)));
    return options;
  }

  SimExecutor executor_;
  SimFabric fabric_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<LoopRank>> ranks_;
  std::vector<ActorRef<Trainer>> refs_;
  std::vector<Trainer*> trainers_;
};

TEST(AveragingLoopTest, AllRanksEndAfterTheSameRoundAndResume) {
  int resumed = 0;
  ForEachSeed(300, [&](uint64_t seed) {
    LoopWorld world(seed, static_cast<int32_t>(1 + seed % 5));
    for (int phase = 0; phase < 2; ++phase) {
      world.ResumeAll();
      for (int32_t rank = 0; rank < world.size(); ++rank) {
        world.Train(rank, static_cast<int>(world.executor().Uniform(12)));
      }
      ASSERT_TRUE(world.RunUntilStopped(phase + 1)) << "a rank hangs";
      world.ExpectEndedTogether();
      world.ExpectSumIsKept();
      world.ExpectEqualWeights();
      resumed += phase;
    }
  });
  EXPECT_GT(resumed, 0);
}

TEST(AveragingLoopTest, DeathEndsTheLoopOfAllWithItsReason) {
  ForEachSeed(300, [&](uint64_t seed) {
    LoopWorld world(seed, static_cast<int32_t>(2 + seed % 4));
    world.ResumeAll();
    for (int32_t rank = 0; rank < world.size(); ++rank) world.Train(rank, 1000000);
    world.executor().RunFor(
        absl::Microseconds(static_cast<int64_t>(world.executor().Uniform(20000))));
    const auto dead = static_cast<int32_t>(world.executor().Uniform(world.size()));
    world.fabric().KillRank(Rank(dead));
    world.executor().RunFor(absl::Milliseconds(300));
    for (int32_t rank = 0; rank < world.size(); ++rank) {
      if (rank == dead) continue;
      const absl::Status status = world.trainer(rank).claim_status();
      EXPECT_THAT(status.ToString(), HasSubstr(absl::StrCat("rank ", dead, " died")));
      EXPECT_EQ(world.rank(rank).loop().Resume(), status);
      EXPECT_EQ(world.rank(rank).loop().Stop(world.executor().Now() + kStopTimeout), status);
    }
  });
}

// What a callback throws is told to this rank's callers, and its peers do not wait for it.
TEST(AveragingLoopTest, AnExceptionEndsTheLoopOfAllWithItsReason) {
  for (const bool in_copy : {true, false}) {
    LoopWorld world(1, 2);
    in_copy ? world.rank(0).ThrowInCopy() : world.rank(0).ThrowInAdd();
    world.ResumeAll();
    world.executor().RunFor(absl::Seconds(1));
    for (int32_t rank = 0; rank < 2; ++rank) {
      const absl::Status status =
          world.rank(rank).loop().Claim(world.executor().Now() + absl::Seconds(1));
      EXPECT_THAT(status.ToString(), HasSubstr("resized before the")) << "rank " << rank;
      EXPECT_EQ(world.rank(rank).loop().Resume(), status);
    }
  }
}

TEST(AveragingLoopTest, ATurnThatThrowsEndsTheRoundsOfAllWithItsReason) {
  LoopWorld world(1, 2);
  world.rank(0).ThrowInTurn();
  world.ResumeAll();
  world.executor().RunFor(absl::Seconds(1));
  const absl::Status other = world.rank(1).loop().Claim(world.executor().Now() + absl::Seconds(1));
  EXPECT_THAT(other.ToString(), HasSubstr("the loop's own bug"));
  // Which is what its backend tells all ranks.
  EXPECT_THAT(world.rank(1).told(), ElementsAre(HasSubstr("the loop's own bug")));
}

TEST(AveragingLoopTest, AClaimThatNobodyWaitsForDoesNotHold) {
  LoopWorld world(1, 2);
  { const Future<void> given_up = world.rank(0).loop().RequestClaim(); }
  world.ResumeAll();
  world.executor().RunFor(absl::Seconds(1));
  EXPECT_GT(world.rank(0).added(), 0);
}

TEST(AveragingLoopTest, TrainingGoesOnWhileARoundIsUnderWay) {
  LoopWorld world(1, 2);
  world.fabric().Delay({Rank(0), Rank(1)}, absl::Seconds(1));
  world.fabric().Delay({Rank(1), Rank(0)}, absl::Seconds(1));
  world.ResumeAll();
  for (int32_t rank = 0; rank < 2; ++rank) world.Train(rank, 1000000);
  world.executor().RunFor(absl::Milliseconds(500));
  EXPECT_EQ(world.rank(0).added(), 0) << "the first result is still on its way";
  EXPECT_GT(world.rank(0).trained(), 100 * kCount) << "training waited for it";
  // Two buckets, one after the other; an allreduce crosses each wire twice.
  world.executor().RunFor(absl::Seconds(4));
  EXPECT_EQ(world.rank(0).added(), 1);
}

TEST(AveragingLoopTest, StopSaysHowManyHadAskedByItsDeadline) {
  LoopWorld world(1, 3);
  world.ResumeAll();
  const absl::Time deadline = world.executor().Now() + absl::Seconds(1);
  Future<void> one = world.rank(1).loop().RequestStop(deadline);
  const absl::Status status = world.rank(2).loop().Stop(deadline);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.ToString(), HasSubstr("2 of 3 ranks had asked to stop by round"));
  EXPECT_FALSE(std::move(one).Await(deadline + absl::Seconds(1)).ok());
  // The wish stands: the last rank's ends the loop, and asking again finds it ended.
  EXPECT_TRUE(world.rank(0).loop().Stop(world.executor().Now() + kStopTimeout).ok());
  world.executor().RunFor(absl::Milliseconds(10));
  EXPECT_TRUE(world.rank(2).loop().Stop(world.executor().Now() + kStopTimeout).ok());
}

TEST(AveragingLoopTest, ResumeWithdrawsTheWishToStop) {
  LoopWorld world(1, 2);
  world.ResumeAll();
  const absl::Time deadline = world.executor().Now() + kStopTimeout;
  Future<void> stop = world.rank(0).loop().RequestStop(deadline);
  world.executor().RunFor(absl::Milliseconds(20));
  EXPECT_TRUE(world.rank(0).loop().Resume().ok());
  EXPECT_EQ(std::move(stop).Await(deadline).code(), absl::StatusCode::kCancelled);
  Future<void> alone = world.rank(1).loop().RequestStop(world.executor().Now() + absl::Seconds(1));
  EXPECT_EQ(std::move(alone).Await(world.executor().Now() + kStopTimeout).code(),
            absl::StatusCode::kDeadlineExceeded)
      << "stopped by one rank's wish";
}

TEST(AveragingLoopTest, StopAndResumeMayBeRepeated) {
  LoopWorld world(1, 1);
  const absl::Time deadline = world.executor().Now() + kStopTimeout;
  EXPECT_TRUE(world.rank(0).loop().Stop(deadline).ok()) << "a loop begins stopped";
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(world.rank(0).loop().Resume().ok());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(world.rank(0).loop().Stop(deadline).ok());
}

TEST(AveragingLoopTest, StopLetsGoOfAClaim) {
  LoopWorld world(1, 1);
  const absl::Time deadline = world.executor().Now() + kStopTimeout;
  ASSERT_TRUE(world.rank(0).loop().Resume().ok());
  ASSERT_TRUE(world.rank(0).loop().Claim(deadline).ok());
  EXPECT_TRUE(world.rank(0).loop().Stop(deadline).ok());
}

TEST(AveragingLoopTest, RefusesWhatItCannotDrive) {
  LoopWorld world(1, 1);
  EXPECT_THAT(AveragingLoop::Create(world.rank(0).rounds(), {}).status().ToString(),
              HasSubstr("no callback copy_in"));
  const auto options = [](absl::Duration pause) {
    AveragingLoopOptions with_callbacks;
    with_callbacks.pause = pause;
    with_callbacks.copy_in = [](SlotId, std::byte*) { return absl::OkStatus(); };
    with_callbacks.add = [](SlotId, const std::byte*) {};
    return with_callbacks;
  };
  EXPECT_THAT(
      AveragingLoop::Create(world.rank(0).rounds(), options(-absl::Seconds(1))).status().ToString(),
      HasSubstr("pause is -1s"));
}

TEST(AveragingLoopTest, NeedsTheStopTensor) {
  SimExecutor executor(1);
  SimOptions network;
  network.clock = &executor.clock();
  SimFabric fabric(WorldSize(1), network);
  auto communicators = *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(1)));
  const std::unique_ptr<Algorithm> algorithm = *MakeAlgorithm("async_model_average", {});
  ModelRoundsOptions options;
  options.executor = &executor;
  options.runner = communicators[0].get();
  options.pipeline_factory = [&](const BucketLayout& layout) {
    return MakePipeline(*algorithm, layout, Tiers::Of(*communicators[0]));
  };
  const auto rounds =
      *ModelRounds::Create(*Plan::Build({{"a", DType::kFloat32, 3, {}}}, {}), std::move(options));
  AveragingLoopOptions loop;
  loop.copy_in = [](SlotId, std::byte*) { return absl::OkStatus(); };
  loop.add = [](SlotId, const std::byte*) {};
  EXPECT_THAT(AveragingLoop::Create(*rounds, std::move(loop)).status().ToString(),
              HasSubstr("the plan has no tensor 'averaging: wish to stop'"));
}

// The same on threads: the loop's and the scheduler's own, and one that trains.
TEST(AveragingLoopTest, RunsOnThreads) {
  constexpr int32_t kSize = 3;
  SimFabric fabric{WorldSize(kSize)};
  std::vector<std::unique_ptr<Communicator>> communicators =
      *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(kSize)));
  std::vector<std::unique_ptr<LoopRank>> ranks;
  for (auto& communicator : communicators) {
    ranks.push_back(std::make_unique<LoopRank>(*communicator, nullptr, absl::Microseconds(100)));
  }
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&rank] {
      const absl::Time deadline = Clock::Real().Now() + kStopTimeout;
      EXPECT_TRUE(rank->loop().Resume().ok());
      for (int step = 0; step < 200; ++step) {
        EXPECT_TRUE(rank->loop().Claim(deadline).ok());
        rank->set_held(true);
        rank->Train(1);
        rank->set_held(false);
        rank->loop().Release();
      }
      EXPECT_TRUE(rank->loop().Stop(deadline).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& rank : ranks) {
    EXPECT_EQ(rank->rounds().round(), ranks[0]->rounds().round());
    EXPECT_NEAR(rank->weights()[0], 200, 0.01);
  }
}

}  // namespace
}  // namespace pelton
