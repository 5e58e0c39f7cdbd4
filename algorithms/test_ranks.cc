#include "algorithms/test_ranks.h"

#include <numeric>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/pipeline/operation.h"

namespace pelton {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(100);

int32_t Sum(const std::vector<int32_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0);
}

absl::Duration Microseconds(uint64_t count) {
  return absl::Microseconds(static_cast<int64_t>(count));
}

SimOptions FabricOptions(SimExecutor& executor, const TestRanksOptions& options) {
  SimOptions fabric;
  fabric.seed = options.seed;
  fabric.clock = &executor.clock();
  if (options.is_disturbed) {
    fabric.link.latency = Microseconds(1 + executor.Uniform(50));
    fabric.link.jitter = Microseconds(executor.Uniform(300));
    fabric.link.bytes_per_second = executor.Uniform(2) == 0 ? 0 : 1e8;
  }
  return fabric;
}

}  // namespace

// Counts what is launched, and aborts where it is told to.
// Threads: as OperationRunner. Owns: the runner behind it.
class TestRanks::EndingRunner final : public OperationRunner {
 public:
  explicit EndingRunner(const Tiers& tiers) : inner_(tiers) {}

  void EndAt(uint64_t number) { end_at_ = launched_ + number; }
  uint64_t launched() const { return launched_; }

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    if (launched_ + 1 == end_at_) Abort(absl::AbortedError("ended for the test"));
    absl::StatusOr<Completion> completion = inner_.Launch(operation, stream);
    launched_ += completion.ok() ? 1 : 0;
    return completion;
  }
  bool Progress() override { return inner_.Progress(); }
  State Query(Completion completion) override { return inner_.Query(completion); }
  State Follow(Completion completion, Stream& stream) override {
    return inner_.Follow(completion, stream);
  }
  void Park(absl::Time until) override { inner_.Park(until); }
  void Wake() override { inner_.Wake(); }
  void Abort(const absl::Status& reason) override { inner_.Abort(reason); }
  std::vector<Rank> Missing() const override { return inner_.Missing(); }

 private:
  TieredRunner inner_;
  uint64_t launched_ = 0;
  uint64_t end_at_ = 0;
};

TestRanks::TestRanks(const TestRanksOptions& options)
    : executor_(options.seed),
      fabric_(WorldSize(Sum(options.host_sizes)), FabricOptions(executor_, options)),
      windows_(Sum(options.host_sizes)),
      is_disturbed_(options.is_disturbed) {
  executor_.AddEventSource(&fabric_);
  for (int32_t rank = 0; rank < Sum(options.host_sizes); ++rank) {
    ranks_.push_back(std::make_unique<OneRank>());
    ranks_.back()->algorithm = *MakeAlgorithm(options.algorithm, options.options);
  }
  OpenTiers(options.host_sizes);
  MakePipelines(PlanOf(options));
  for (int32_t rank = 0; rank < world_size(); ++rank) AddRounds(rank, options);
}

TestRanks::~TestRanks() {
  for (auto& rank : ranks_) rank->rounds.reset();
  communicators_.clear();
  executor_.RemoveEventSource(&fabric_);
}

std::vector<Communicator*> TestRanks::Open(const Group& group) {
  std::vector<Communicator*> opened;
  auto made = *fabric_.OpenAll(CommunicatorId(++last_communicator_), group);
  for (auto& communicator : made) {
    opened.push_back(communicators_.emplace_back(std::move(communicator)).get());
  }
  return opened;
}

void TestRanks::OpenTiers(const std::vector<int32_t>& host_sizes) {
  const std::vector<Communicator*> all = Open(Group::World(WorldSize(world_size())));
  for (size_t rank = 0; rank < all.size(); ++rank) ranks_[rank]->tiers = Tiers::Of(*all[rank]);
  if (!ranks_[0]->algorithm->IsHierarchical()) return;
  Group leaders{{}, Generation(1)};
  int32_t first = 0;
  for (int32_t size : host_sizes) {
    Group host{{}, Generation(1)};
    for (int32_t i = 0; i < size; ++i) host.members.emplace_back(first + i);
    const std::vector<Communicator*> opened = Open(host);
    for (int32_t i = 0; i < size; ++i) {
      Tiers& tiers = ranks_[static_cast<size_t>(first + i)]->tiers;
      tiers.host = opened[static_cast<size_t>(i)];
      tiers.host_sizes = host_sizes;
      tiers.host_ranks = host.members;
    }
    leaders.members.emplace_back(first);
    first += size;
  }
  const std::vector<Communicator*> opened = Open(leaders);
  for (size_t i = 0; i < opened.size(); ++i) {
    Tiers& tiers = ranks_[static_cast<size_t>(leaders.members[i].value())]->tiers;
    tiers.leaders = opened[i];
    tiers.leader_ranks = leaders.members;
  }
}

Plan TestRanks::PlanOf(const TestRanksOptions& options) {
  PlanOptions plan;
  plan.world_size = WorldSize(world_size());
  plan.bucket_size_bytes = options.bucket_size_bytes;
  plan.constraints = ranks_[0]->algorithm->Constraints();
  plan.algorithm = DescribeAlgorithm(options.algorithm, options.options);
  return *Plan::Build(options.tensors, plan);
}

void TestRanks::MakePipelines(const Plan& plan) {
  if (!ranks_[0]->algorithm->UsesWindows()) return;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world_size(); ++rank) {
    threads.emplace_back([this, &plan, rank] {
      OneRank& own = *ranks_[static_cast<size_t>(rank)];
      own.tiers.windows = &windows_.source(rank);
      own.pipelines.clear();
      for (const BucketLayout& layout : plan.buckets()) {
        own.pipelines.push_back(*MakePipeline(*own.algorithm, layout, own.tiers));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void TestRanks::AddRounds(int32_t rank, const TestRanksOptions& options) {
  OneRank& own = *ranks_[static_cast<size_t>(rank)];
  const Communicator* const paired = own.tiers.are_open() ? own.tiers.leaders : own.tiers.all;
  if (paired != nullptr) {
    const auto place = static_cast<size_t>(paired->rank().value());
    if (!options.peers.empty()) own.tiers.peers = options.peers[place];
    if (!options.matchmakers.empty()) own.tiers.matchmaker = options.matchmakers[place];
  }
  own.runner = std::make_unique<EndingRunner>(own.tiers);
  ModelRoundsOptions rounds;
  rounds.rank = Rank(rank);
  rounds.executor = &executor_;
  rounds.runner = own.runner.get();
  rounds.commits_state = options.commits_state;
  rounds.pipeline_factory = [&own](const BucketLayout& layout) -> absl::StatusOr<Pipeline> {
    if (!own.algorithm->UsesWindows()) return MakePipeline(*own.algorithm, layout, own.tiers);
    return std::move(own.pipelines[static_cast<size_t>(layout.id.value())]);
  };
  own.rounds = *ModelRounds::Create(PlanOf(options), std::move(rounds));
}

absl::Status TestRanks::RunRound(Produce produce) {
  std::vector<Mark> marks;
  for (int32_t rank = 0; rank < world_size(); ++rank) {
    for (size_t i = 0; i < rounds(rank).plan().slots().size(); ++i) {
      const SlotId slot(static_cast<int32_t>(i));
      if (produce(rank, slot, rounds(rank).DataOf(slot))) marks.push_back({rank, slot});
    }
  }
  if (is_disturbed_) Disturb(marks);
  for (const Mark& mark : marks) {
    RETURN_IF_ERROR(rounds(mark.rank).MarkReady(mark.slot));
    if (is_disturbed_ && executor_.Uniform(4) == 0) {
      executor_.RunFor(Microseconds(executor_.Uniform(100)));
    }
  }
  for (auto& rank : ranks_) RETURN_IF_ERROR(rank->rounds->EndRound());
  for (auto& rank : ranks_) {
    RETURN_IF_ERROR(rank->rounds->WaitRound(executor_.Now() + kPatience));
  }
  return absl::OkStatus();
}

// Any order, a different one on each rank; now and then what a rank launches is late by much.
void TestRanks::Disturb(std::vector<Mark>& marks) {
  for (size_t i = marks.size(); i > 1; --i) std::swap(marks[i - 1], marks[executor_.Uniform(i)]);
  for (int32_t rank = 0; rank < world_size(); ++rank) {
    if (executor_.Uniform(4) != 0) continue;
    fabric_.Stall(Rank(rank), executor_.Now() + Microseconds(executor_.Uniform(5000)));
  }
}

absl::Status TestRanks::Replan(const std::vector<SlotId>& order) {
  ASSIGN_OR_RETURN(const Plan plan, rounds(0).plan().Reordered(order));
  MakePipelines(plan);
  for (auto& rank : ranks_) {
    RETURN_IF_ERROR(rank->rounds->Replan(order, executor_.Now() + kPatience));
  }
  return absl::OkStatus();
}

void TestRanks::EndAtOperation(int32_t rank, uint64_t number) {
  ranks_[static_cast<size_t>(rank)]->runner->EndAt(number);
}

uint64_t TestRanks::OperationCount(int32_t rank) const {
  return ranks_[static_cast<size_t>(rank)]->runner->launched();
}

std::vector<std::byte> TestRanks::ResultOf(int32_t rank, SlotId slot) {
  const SlotResult result = rounds(rank).ResultOf(slot);
  return {result.data, result.data + result.size_bytes};
}

}  // namespace pelton
