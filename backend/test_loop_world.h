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
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "backend/averaging_loop.h"
#include "comm/communicator.h"
#include "comm/tiers.h"
#include "comm/transport/sim/sim_fabric.h"
#include "comm/window/test_windows.h"
#include "comm/window/window.h"
#include "comm/window/window_source.h"
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

// Counts what is launched, and ends the communication where it is told to.
// Threads: the simulation's. Owns: the communicator it wraps.
class EndingCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  // At the launch of this number from now on, from 1.
  void EndAtLaunch(uint64_t number) { ends_at_ = launched_ + number; }
  uint64_t launched() const { return launched_; }

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    if (++launched_ == ends_at_) wrapped().Abort(absl::AbortedError("ended for the test"));
    return wrapped().Launch(operation, stream);
  }

 private:
  uint64_t launched_ = 0;
  uint64_t ends_at_ = 0;  // 0: never
};

// One rank's weights, rounds and loop.
// Threads: the simulation's, or as AveragingLoop. Owns: all but executor and communicator.
class LoopRank {
 public:
  LoopRank(Communicator& communicator, std::unique_ptr<Algorithm> algorithm)
      : communicator_(communicator), algorithm_(std::move(algorithm)), weights_(kCount, 0) {}

  // Before Begin, of an algorithm that uses windows. Blocks: until all ranks have called it, each
  // on a thread of its own.
  void OpenWindows(WindowSource& source) {
    seen_source_ = std::make_unique<SeenSource>(source, windows_);
    const Plan plan = MakePlan();
    for (const BucketLayout& layout : plan.buckets()) {
      Tiers tiers = Tiers::Of(communicator_);
      tiers.windows = seen_source_.get();
      pipelines_.push_back(*MakePipeline(*algorithm_, layout, tiers));
    }
  }

  void Begin(Executor* executor, absl::Duration pause) {
    const bool ranks_share_rounds = algorithm_->schedule().ranks_share_rounds;
    ModelRoundsOptions rounds;
    rounds.rank = communicator_.rank();
    rounds.executor = executor;
    rounds.runner = &communicator_;
    rounds.pipeline_factory = [this](const BucketLayout& layout) -> absl::StatusOr<Pipeline> {
      if (pipelines_.empty()) return MakePipeline(*algorithm_, layout, Tiers::Of(communicator_));
      return std::move(pipelines_[static_cast<size_t>(layout.id.value())]);
    };
    rounds.operation_timeout = kRoundTimeout;
    rounds.on_failure = [this](const absl::Status& reason) {
      told_.emplace_back(reason.message());
    };
    rounds.on_round = [this](Round) {
      if (throws_in_turn_) throw std::runtime_error("the loop's own bug");
    };
    rounds_ = *ModelRounds::Create(MakePlan(), std::move(rounds));
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
      if (++merged_slots_ % 2 == 0) merged_.push_back({weights_, WindowTensors()});
    };
    loop_ = *AveragingLoop::Create(*rounds_, std::move(options));
  }

  // What a merge has left, once it is whole. Threads: a value. Owns: its lists.
  struct Merged {
    std::vector<float> weights;
    std::vector<std::string> windows;  // as WindowTensors
  };
  // By merge.
  const std::vector<Merged>& merged() const { return merged_; }
  // The bytes of this rank's own tensor of each of its windows, in the order of the buckets.
  std::vector<std::string> WindowTensors() const {
    std::vector<std::string> tensors;
    for (const Window* window : windows_) {
      const Tensor& tensor = window->options().tensor;
      tensors.emplace_back(static_cast<const char*>(tensor.data),
                           tensor.count * SizeOf(tensor.dtype));
    }
    return tensors;
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
  // Threads: as WindowSource. Owns: nothing.
  class SeenSource final : public WindowSource {
   public:
    SeenSource(WindowSource& source, std::vector<Window*>& seen) : source_(source), seen_(seen) {}
    absl::StatusOr<std::unique_ptr<Window>> Make(WindowOptions options) override {
      absl::StatusOr<std::unique_ptr<Window>> window = source_.Make(std::move(options));
      if (window.ok()) seen_.push_back(window->get());
      return window;
    }
    MovingDeadline deadline() const override { return source_.deadline(); }

   private:
    WindowSource& source_;
    std::vector<Window*>& seen_;
  };

  // Each of the weights is a bucket of its own.
  Plan MakePlan() const {
    PlanOptions plan;
    plan.world_size = communicator_.world_size();
    plan.constraints = algorithm_->Constraints();
    plan.bucket_size_bytes = 64;
    std::vector<TensorSpec> tensors;
    for (const char* name : {"weight", "bias"}) {
      tensors.push_back({name, DType::kFloat32, kCount / 2, {}});
    }
    if (algorithm_->schedule().ranks_share_rounds) tensors.push_back(AveragingLoop::StopTensor());
    return *Plan::Build(std::move(tensors), plan);
  }

  float* WeightsOf(SlotId slot) {
    EXPECT_LT(slot.value(), 2) << "not one of the weights";
    return weights_.data() + static_cast<uint64_t>(slot.value()) * (kCount / 2);
  }

  Communicator& communicator_;
  const std::unique_ptr<Algorithm> algorithm_;
  std::vector<Window*> windows_;  // the pipelines'
  std::unique_ptr<SeenSource> seen_source_;
  std::vector<Pipeline> pipelines_;  // until the rounds take them
  std::vector<float> weights_;
  std::vector<Merged> merged_;
  uint64_t merged_slots_ = 0;
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
      : executor_(seed), fabric_(WorldSize(size), NetworkOf(seed)), windows_(size) {
    executor_.AddEventSource(&fabric_);
    auto opened = *fabric_.OpenAll(CommunicatorId(1), Group::World(WorldSize(size)));
    for (std::unique_ptr<Communicator>& one : opened) {
      communicators_.push_back(std::make_unique<EndingCommunicator>(std::move(one)));
      EndingCommunicator& communicator = *communicators_.back();
      std::unique_ptr<Algorithm> algorithm = make_algorithm(communicator.rank());
      uses_windows_ = algorithm->UsesWindows();
      ranks_.push_back(std::make_unique<LoopRank>(communicator, std::move(algorithm)));
    }
    if (uses_windows_) OpenWindows();
    const auto pause = absl::Microseconds(static_cast<int64_t>(executor_.Uniform(400)));
    for (auto& rank : ranks_) {
      rank->Begin(&executor_, pause);
      refs_.push_back(Spawn<Trainer>(executor_, {}, rank.get(), &executor_));
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
  EndingCommunicator& communicator(int32_t rank) {
    return *communicators_[static_cast<size_t>(rank)];
  }
  TestWindows& windows() { return windows_; }
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

  void OpenWindows() {
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < size(); ++rank) {
      threads.emplace_back(
          [this, rank] { ranks_[static_cast<size_t>(rank)]->OpenWindows(windows_.source(rank)); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  SimExecutor executor_;
  SimFabric fabric_;
  TestWindows windows_;
  bool uses_windows_ = false;
  std::vector<std::unique_ptr<EndingCommunicator>> communicators_;
  std::vector<std::unique_ptr<LoopRank>> ranks_;
  std::vector<ActorRef<Trainer>> refs_;
  std::vector<Trainer*> trainers_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_TEST_LOOP_WORLD_H_
