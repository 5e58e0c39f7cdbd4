// Properties of the rounds of a world of simulated ranks, over many seeds. Each seed chooses the
// model, the network, the order in which tensors become ready on each rank, slow ranks, unused
// tensors, changes of plan, and now and then a rank that dies or hangs. Whatever happens:
//   ORDER-1     all ranks launch the same operations in the same order;
//   ONCE-1      every round that is waited for is answered exactly once;
//   DEADLINE-1  no answer comes after its deadline;
//   ALL-1       a round that is answered OK holds the right sums, and knows what nobody used.
// A failing seed is printed: PELTON_SEED=<seed> repeats it; PELTON_SEEDS=<count> runs more.
#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/actor/context.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "core/base/status.h"
#include "core/pipeline/standard_stages.h"
#include "core/round/model_rounds.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr uint64_t kSeeds = 3000;
constexpr absl::Duration kOperationTimeout = absl::Seconds(2);
constexpr absl::Duration kRoundTimeout = absl::Seconds(5);

// Passes everything on and remembers what was launched.
// Threads: as OperationRunner. Owns: the record.
class RecordingRunner final : public OperationRunner {
 public:
  explicit RecordingRunner(OperationRunner& runner) : runner_(runner) {}

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    const absl::StatusOr<Completion> completion = runner_.Launch(operation, stream);
    if (completion.ok()) {
      launched_.push_back(absl::StrCat(generation_, "/", operation.bucket.value(), "/",
                                       operation.count, "/", NameOf(operation.dtype)));
    }
    return completion;
  }
  bool Progress() override { return runner_.Progress(); }
  State Query(Completion completion) override { return runner_.Query(completion); }
  void Park(absl::Time until) override { runner_.Park(until); }
  void Wake() override { runner_.Wake(); }
  void Abort(const absl::Status& reason) override { runner_.Abort(reason); }
  std::vector<Rank> Missing() const override { return runner_.Missing(); }

  void set_generation(uint32_t generation) { generation_ = generation; }
  const std::vector<std::string>& launched() const { return launched_; }

 private:
  OperationRunner& runner_;
  uint32_t generation_ = 1;
  std::vector<std::string> launched_;
};

// What a seed decides. Every rank's behaviour follows from it, so sums can be foretold.
// Threads: one. Owns: the randomness.
class Scenario {
 public:
  explicit Scenario(uint64_t seed) : seed_(seed), random_(seed * 2654435761u) {
    world_size_ = 1 + static_cast<int32_t>(Below(6));
    const uint64_t tensor_count = 1 + Below(16);
    for (uint64_t i = 0; i < tensor_count; ++i) {
      const DType dtype = Below(4) == 0 ? DType::kInt32 : DType::kFloat32;
      tensors_.push_back({absl::StrCat("t", i), dtype, Below(40), {}});
    }
    bucket_bytes_ = 32 + Below(400);
    standalone_bytes_ = Below(2) == 0 ? 100 : PlanOptions::kNoStandalone;
    if (world_size_ > 1 && Below(3) == 0) {
      faulty_rank_ = static_cast<int32_t>(Below(static_cast<uint64_t>(world_size_)));
      fault_round_ = 1 + Below(6);
      dies_ = Below(2) == 0;
    }
  }

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  absl::Duration Delay(int64_t microseconds) {
    return absl::Microseconds(static_cast<int64_t>(Below(static_cast<uint64_t>(microseconds))));
  }

  Plan MakePlan() const {
    PlanOptions options;
    options.world_size = WorldSize(world_size_);
    options.bucket_size_bytes = bucket_bytes_;
    options.standalone_bytes = standalone_bytes_;
    return *Plan::Build(tensors_, options);
  }
  // A third of the tensors of a round are used by some ranks only, or by none.
  bool Uses(int32_t rank, uint64_t round, size_t slot) const {
    const uint64_t mixed = Mix(round, slot);
    return mixed % 3 != 0 || Mix(mixed, static_cast<uint64_t>(rank)) % 4 == 0;
  }
  int Value(int32_t rank, uint64_t round, size_t slot) const {
    return static_cast<int>(Mix(Mix(round, slot), static_cast<uint64_t>(rank) + 77) % 1000);
  }
  int Sum(uint64_t round, size_t slot) const {
    int sum = 0;
    for (int32_t rank = 0; rank < world_size_; ++rank) {
      if (Uses(rank, round, slot)) sum += Value(rank, round, slot);
    }
    return sum;
  }
  bool UsedByAny(uint64_t round, size_t slot) const {
    for (int32_t rank = 0; rank < world_size_; ++rank) {
      if (Uses(rank, round, slot)) return true;
    }
    return false;
  }
  bool IsFaulty(int32_t rank, uint64_t round) const {
    return rank == faulty_rank_ && round == fault_round_;
  }
  bool HasFault() const { return faulty_rank_ >= 0; }
  bool dies() const { return dies_; }
  int32_t faulty_rank() const { return faulty_rank_; }
  int32_t world_size() const { return world_size_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }

 private:
  uint64_t Mix(uint64_t a, uint64_t b) const {
    uint64_t x = seed_ * 0x9E3779B97F4A7C15u + a * 0xBF58476D1CE4E5B9u + b * 0x94D049BB133111EBu;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return x ^ (x >> 32);
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
  int32_t world_size_;
  std::vector<TensorSpec> tensors_;
  uint64_t bucket_bytes_;
  uint64_t standalone_bytes_;
  int32_t faulty_rank_ = -1;
  uint64_t fault_round_ = 0;
  bool dies_ = false;
};

struct RunRounds {
  int count;
};
struct NextMark {};

// The training loop of one rank.
// Threads: its turns. Owns: the memory of standalone tensors.
class Trainer final : public Actor {
 public:
  Trainer(Scenario* scenario, SimFabric* fabric, ModelRounds* rounds, int32_t rank)
      : scenario_(*scenario), fabric_(*fabric), rounds_(*rounds), rank_(rank) {}

  void Handle(RunRounds message) {
    left_ = message.count;
    answers_wanted_ = 0;
    answers_ = 0;
    if (!stopped_) BeginRound();
  }

  void Handle(NextMark) {
    if (scenario_.IsFaulty(rank_, rounds_.round().value()) && order_.size() <= fault_after_) {
      stopped_ = true;
      if (scenario_.dies()) fabric_.KillRank(Rank(rank_));
      return;
    }
    if (order_.empty()) return EndRound();
    Mark(std::exchange(order_, {order_.begin(), order_.end() - 1}).back());
    context().SendAfter(*this, scenario_.Delay(30), NextMark{});
  }

  // Whether all rounds up to `round` are behind it, or it does nothing more.
  bool done(uint64_t round) const { return stopped_ || rounds_.round().value() > round; }
  // The reason of the first failed round.
  const absl::Status& failure() const { return failure_; }
  bool failed() const { return !failure_.ok(); }

 private:
  void BeginRound() {
    const uint64_t round = rounds_.round().value();
    memory_.assign(scenario_.tensors().size(), {});
    order_.clear();
    for (size_t slot = 0; slot < scenario_.tensors().size(); ++slot) {
      if (scenario_.Uses(rank_, round, slot)) order_.push_back(slot);
    }
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[scenario_.Below(i)]);
    // At least one tensor, or else the end of the round, is left out: the peers wait in vain.
    fault_after_ = 1 + scenario_.Below(order_.size() + 1);
    // Now and then a rank is late by much.
    const bool late = scenario_.Below(10) == 0;
    context().SendAfter(*this, scenario_.Delay(late ? 500000 : 100), NextMark{});
  }

  void Mark(size_t index) {
    const SlotId slot(static_cast<int32_t>(index));
    const TensorSpec& tensor = scenario_.tensors()[index];
    const int value = scenario_.Value(rank_, rounds_.round().value(), index);
    const bool standalone = rounds_.plan().slot(slot).standalone;
    memory_[index].resize(tensor.size_bytes());
    std::byte* const data = standalone ? memory_[index].data() : rounds_.DataOf(slot);
    if (tensor.dtype == DType::kInt32) {
      std::fill_n(reinterpret_cast<int32_t*>(data), tensor.count, value);
    } else {
      std::fill_n(reinterpret_cast<float*>(data), tensor.count, static_cast<float>(value));
    }
    const absl::Status status =
        standalone ? rounds_.MarkReady(slot, data) : rounds_.MarkReady(slot);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ((standalone ? rounds_.MarkReady(slot, data) : rounds_.MarkReady(slot)).code(),
              absl::StatusCode::kAlreadyExists);
  }

  void EndRound() {
    EXPECT_TRUE(rounds_.EndRound().ok());
    const absl::Time deadline = context().Now() + kRoundTimeout;
    ++answers_wanted_;
    context().Then(rounds_.RoundDone(deadline), [this, deadline](absl::Status status) {
      EXPECT_EQ(++answers_, answers_wanted_) << "ONCE-1";
      EXPECT_LE(context().Now(), deadline) << "DEADLINE-1, rank " << rank_ << ": " << status;
      OnRoundDone(rounds_.CloseRound(std::move(status)));
    });
  }

  void OnRoundDone(const absl::Status& status) {
    if (status.ok()) {
      EXPECT_FALSE(failed()) << "a round after a failure is answered OK";
      CheckResults(rounds_.round().value() - 1);
    } else if (!failed()) {
      failure_ = status;
    }
    if (--left_ > 0) BeginRound();
  }

  void CheckResults(uint64_t round) {
    for (size_t index = 0; index < scenario_.tensors().size(); ++index) {
      const SlotResult result = rounds_.ResultOf(SlotId(static_cast<int32_t>(index)));
      const TensorSpec& tensor = scenario_.tensors()[index];
      EXPECT_EQ(result.used_by_any, scenario_.UsedByAny(round, index)) << tensor.name;
      for (uint64_t i = 0; i < tensor.count; ++i) {
        const int held = tensor.dtype == DType::kInt32
                             ? reinterpret_cast<const int32_t*>(result.data)[i]
                             : static_cast<int>(reinterpret_cast<const float*>(result.data)[i]);
        EXPECT_EQ(held, scenario_.Sum(round, index))
            << tensor.name << " on rank " << rank_ << " in round " << round;
      }
    }
  }

  Scenario& scenario_;
  SimFabric& fabric_;
  ModelRounds& rounds_;
  const int32_t rank_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<size_t> order_;
  size_t fault_after_ = 0;
  int left_ = 0;
  int answers_wanted_ = 0;
  int answers_ = 0;
  bool stopped_ = false;
  absl::Status failure_;
};

absl::StatusOr<Pipeline> SumPipeline(const BucketLayout& layout) {
  PipelineSpec spec;
  spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
  spec.finds_unused = true;
  return Pipeline::Build(std::move(spec), layout);
}

// Threads: one. Owns: the world of one seed.
class SimulatedWorld {
 public:
  explicit SimulatedWorld(uint64_t seed)
      : scenario_(seed), executor_(seed), fabric_(Size(), NetworkOf(seed)) {
    executor_.AddEventSource(&fabric_);
    communicators_ = *fabric_.OpenAll(CommunicatorId(1), Group::World(Size()));
    for (int32_t rank = 0; rank < scenario_.world_size(); ++rank) AddRank(rank);
  }
  ~SimulatedWorld() {
    // Actors that wait for nobody any more are dropped with the executor; the rounds end first.
    for (ActorRef<Trainer>& trainer : trainers_) trainer.Stop(executor_.Now());
    rounds_.clear();
    communicators_.clear();
    executor_.RemoveEventSource(&fabric_);
  }

  // Runs `count` rounds on every rank that still can.
  void Run(int count) {
    last_round_ += static_cast<uint64_t>(count);
    for (ActorRef<Trainer>& trainer : trainers_) {
      ASSERT_TRUE(trainer.Send(RunRounds{count}).ok());
    }
    // Much later than any deadline: who is not done by then hangs.
    const absl::Time end = executor_.Now() + (kRoundTimeout + absl::Seconds(1)) * (count + 1);
    EXPECT_TRUE(executor_.RunUntil([this] { return AllDone(); }, end)) << "a rank hangs";
  }

  // All ranks move to the order that rank 0 has seen.
  void Replan() {
    const std::vector<SlotId> order = rounds_[0]->ReadyOrder();
    for (size_t rank = 0; rank < rounds_.size(); ++rank) {
      const absl::Status status = rounds_[rank]->Replan(order, executor_.Now() + absl::Seconds(1));
      ASSERT_TRUE(status.ok()) << status;
      recorders_[rank]->set_generation(rounds_[rank]->plan().version().value());
      EXPECT_EQ(rounds_[rank]->plan().Hash(), rounds_[0]->plan().Hash());
    }
  }

  bool AnyFailed() {
    bool failed = false;
    for (auto* trainer : trainer_objects_) failed |= trainer->failed();
    return failed;
  }

  void CheckLaunchOrder() {
    const std::vector<std::string>* longest = &recorders_[0]->launched();
    for (const auto& recorder : recorders_) {
      if (recorder->launched().size() > longest->size()) longest = &recorder->launched();
    }
    for (const auto& recorder : recorders_) {
      const std::vector<std::string>& mine = recorder->launched();
      EXPECT_TRUE(std::equal(mine.begin(), mine.end(), longest->begin())) << "ORDER-1";
    }
  }

  // Without "model 'm', rank r, round n", which names the rank that reports.
  static std::string ReasonOf(const absl::Status& status) {
    const std::string text(status.message());
    const size_t begin = text.find(": ");
    return begin == std::string::npos ? text : text.substr(begin);
  }

  // Every survivor of a fault has been told whose it is.
  void CheckFailures(bool fault_met) {
    for (size_t rank = 0; rank < trainer_objects_.size(); ++rank) {
      const Trainer& trainer = *trainer_objects_[rank];
      if (static_cast<int32_t>(rank) == scenario_.faulty_rank() && fault_met) continue;
      EXPECT_EQ(trainer.failed(), fault_met) << trainer.failure();
      if (!fault_met) continue;
      const std::string culprit = absl::StrCat("rank ", scenario_.faulty_rank());
      EXPECT_TRUE(absl::StrContains(ReasonOf(trainer.failure()), culprit)) << trainer.failure();
    }
  }

  Scenario& scenario() { return scenario_; }
  uint64_t round() const { return rounds_[0]->round().value(); }

 private:
  WorldSize Size() const { return WorldSize(scenario_.world_size()); }
  SimOptions NetworkOf(uint64_t seed) {
    SimOptions options;
    options.seed = seed;
    options.clock = &executor_.clock();
    options.link.latency = absl::Microseconds(1) + scenario_.Delay(50);
    options.link.bytes_per_second = scenario_.Below(2) == 0 ? 0 : 1e8;
    options.link.jitter = scenario_.Delay(200);
    return options;
  }

  void AddRank(int32_t rank) {
    recorders_.push_back(
        std::make_unique<RecordingRunner>(*communicators_[static_cast<size_t>(rank)]));
    ModelRoundsOptions options;
    options.rank = Rank(rank);
    options.executor = &executor_;
    options.runner = recorders_.back().get();
    options.pipeline_factory = SumPipeline;
    options.operation_timeout = kOperationTimeout;
    rounds_.push_back(*ModelRounds::Create(scenario_.MakePlan(), std::move(options)));
    trainers_.push_back(
        Spawn<Trainer>(executor_, {}, &scenario_, &fabric_, rounds_.back().get(), rank));
    trainer_objects_.push_back(static_cast<Trainer*>(trainers_.back().cell()->actor()));
  }

  bool AllDone() const {
    return std::all_of(trainer_objects_.begin(), trainer_objects_.end(),
                       [this](const Trainer* trainer) { return trainer->done(last_round_); });
  }

  Scenario scenario_;
  uint64_t last_round_ = 0;
  SimExecutor executor_;
  SimFabric fabric_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<RecordingRunner>> recorders_;
  std::vector<std::unique_ptr<ModelRounds>> rounds_;
  std::vector<ActorRef<Trainer>> trainers_;
  // The simulation runs in this thread: between its steps the actors may be looked at.
  std::vector<Trainer*> trainer_objects_;
};

TEST(RoundsPropertyTest, HoldOverManySeeds) {
  int worlds_that_failed = 0;
  int plans_changed = 0;
  uint64_t seeds = 0;
  ForEachSeed(kSeeds, [&](uint64_t seed) {
    SimulatedWorld world(seed);
    ++seeds;
    for (int phase = 0; phase < 3 && !world.AnyFailed(); ++phase) {
      if (phase > 0) {
        world.Replan();
        ++plans_changed;
      }
      world.Run(2);
    }
    world.CheckLaunchOrder();
    // Six rounds are run in all, and a fault strikes in one of them.
    world.CheckFailures(world.scenario().HasFault());
    worlds_that_failed += world.AnyFailed();
  });
  if (seeds < 100) return;
  EXPECT_GT(worlds_that_failed, 0) << "no fault was ever met";
  EXPECT_GT(plans_changed, 0);
}

}  // namespace
}  // namespace pelton
