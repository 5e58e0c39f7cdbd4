// Ranks in one thread and virtual time, whose weights an averaging loop changes beside training.
#ifndef PELTON_BACKEND_TEST_LOOP_WORLD_H_
#define PELTON_BACKEND_TEST_LOOP_WORLD_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "backend/averaging_loop.h"
#include "comm/communicator.h"
#include "comm/tiers.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/actor/actor.h"
#include "core/actor/context.h"
#include "core/actor/monitor.h"
#include "core/actor/sim_executor.h"
#include "core/actor/spawn.h"
#include "core/base/clock.h"
#include "gtest/gtest.h"

namespace pelton {

inline constexpr uint64_t kCount = 24;
inline constexpr absl::Duration kRoundTimeout = absl::Seconds(20);
inline constexpr absl::Duration kStopTimeout = absl::Seconds(15);

// One rank's weights, rounds and loop.
// Threads: the simulation's, or as AveragingLoop. Owns: all but executor and communicator.
class LoopRank {
 public:
  LoopRank(Communicator& communicator, Executor* executor, absl::Duration pause,
           std::unique_ptr<Algorithm> algorithm)
      : communicator_(communicator), algorithm_(std::move(algorithm)), weights_(kCount, 0) {
    const bool ranks_share_rounds = algorithm_->schedule().ranks_share_rounds;
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
    std::vector<TensorSpec> tensors;
    for (const char* name : {"weight", "bias"}) {
      tensors.push_back({name, DType::kFloat32, kCount / 2, {}});  // each a bucket of its own
    }
    if (ranks_share_rounds) tensors.push_back(AveragingLoop::StopTensor());
    rounds_ = *ModelRounds::Create(*Plan::Build(std::move(tensors), plan), std::move(rounds));
    AveragingLoopOptions options;
    options.ranks_share_rounds = ranks_share_rounds;
    options.failure = [this] { return failure_; };
    options.pause = pause;
    options.round_timeout = kRoundTimeout;
    options.executor = executor;
    options.copy_in = [this](SlotId slot, std::byte* target) {
      EXPECT_FALSE(is_held_) << "a snapshot of weights that are claimed";
      if (throws_in_copy_) throw std::runtime_error("resized before the copy");
      std::memcpy(target, WeightsOf(slot), kCount / 2 * sizeof(float));
      return absl::OkStatus();
    };
    options.add = [this](SlotId slot, const std::byte* difference) {
      EXPECT_FALSE(is_held_) << "a result added to weights that are claimed";
      if (throws_in_add_) throw std::runtime_error("resized before the sum");
      for (uint64_t i = 0; i < kCount / 2; ++i) {
        WeightsOf(slot)[i] += reinterpret_cast<const float*>(difference)[i];
      }
      if (slot == SlotId(0)) ++added_;
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
  // As the job does, which has heard of the death of a rank.
  void FailJob(absl::Status failure) { failure_ = std::move(failure); }
  // What the rounds have said of their failure.
  const std::vector<std::string>& told() const { return told_; }
  AveragingLoop& loop() { return *loop_; }
  ModelRounds& rounds() { return *rounds_; }
  const std::vector<float>& weights() const { return weights_; }
  double trained() const { return trained_; }
  int added() const { return added_; }

 private:
  float* WeightsOf(SlotId slot) {
    EXPECT_LT(slot.value(), 2) << "not one of the weights";
    return weights_.data() + static_cast<uint64_t>(slot.value()) * (kCount / 2);
  }

  Communicator& communicator_;
  const std::unique_ptr<Algorithm> algorithm_;
  std::vector<float> weights_;
  double trained_ = 0;
  std::atomic<bool> is_held_{false};  // atomic for the test with threads
  std::atomic<int> added_{0};
  bool throws_in_copy_ = false;
  bool throws_in_add_ = false;
  bool throws_in_turn_ = false;
  absl::Status failure_;
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

inline std::unique_ptr<Algorithm> MakeModelAverage(Rank) {
  return *MakeAlgorithm("async_model_average", {});
}

// Threads: one. Owns: the world of one seed.
class LoopWorld {
 public:
  // `make_algorithm`: each rank's.
  LoopWorld(
      uint64_t seed, int32_t size,
      const std::function<std::unique_ptr<Algorithm>(Rank)>& make_algorithm = &MakeModelAverage)
      : executor_(seed), fabric_(WorldSize(size), NetworkOf(seed)) {
    executor_.AddEventSource(&fabric_);
    communicators_ = *fabric_.OpenAll(CommunicatorId(1), Group::World(WorldSize(size)));
    const auto pause = absl::Microseconds(static_cast<int64_t>(executor_.Uniform(400)));
    for (auto& communicator : communicators_) {
      ranks_.push_back(std::make_unique<LoopRank>(*communicator, &executor_, pause,
                                                  make_algorithm(communicator->rank())));
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
  Communicator& communicator(int32_t rank) { return *communicators_[static_cast<size_t>(rank)]; }
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

}  // namespace pelton

#endif  // PELTON_BACKEND_TEST_LOOP_WORLD_H_
