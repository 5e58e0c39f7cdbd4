#include "algorithms/test_world.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "comm/group.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

int32_t SumOf(const std::vector<int32_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), 0);
}

}  // namespace

TestWorld::TestWorld(const TestWorldOptions& options)
    : disturbed_(options.disturbed),
      tensors_(options.tensors),
      executor_(options.seed),
      fabric_(WorldSize(SumOf(options.host_sizes)), NetworkOf(options)) {
  executor_.AddEventSource(&fabric_);
  OpenTiers(options);
  for (int32_t rank = 0; rank < fabric_.world_size().value(); ++rank) AddRank(rank, options);
}

TestWorld::~TestWorld() {
  rounds_.clear();
  runners_.clear();
  communicators_.clear();
  executor_.RemoveEventSource(&fabric_);
}

SimOptions TestWorld::NetworkOf(const TestWorldOptions& options) {
  SimOptions network;
  network.seed = options.seed;
  network.clock = &executor_.clock();
  if (!options.disturbed) return network;
  network.link.latency = absl::Microseconds(static_cast<int64_t>(executor_.Uniform(50)));
  network.link.jitter = absl::Microseconds(static_cast<int64_t>(1 + executor_.Uniform(200)));
  network.link.bytes_per_second = executor_.Uniform(2) == 0 ? 0 : 1e8;
  return network;
}

void TestWorld::OpenTiers(const TestWorldOptions& options) {
  const WorldSize world_size = fabric_.world_size();
  tiers_.resize(static_cast<size_t>(world_size.value()));
  const auto open = [this](CommunicatorId id, const Group& group, Communicator* Tiers::*tier) {
    auto opened = *fabric_.OpenAll(id, group);
    for (size_t i = 0; i < opened.size(); ++i) {
      tiers_[static_cast<size_t>(group.members[i].value())].*tier = opened[i].get();
      communicators_.push_back(std::move(opened[i]));
    }
  };
  open(CommunicatorId(1), Group::World(world_size), &Tiers::all);
  Group leaders{{}, Generation(1)};
  int32_t first = 0;
  uint32_t id = 2;
  for (int32_t size : options.host_sizes) {
    Group host{{}, Generation(1)};
    for (int32_t i = 0; i < size; ++i) host.members.emplace_back(first + i);
    leaders.members.emplace_back(first);
    open(CommunicatorId(id++), host, &Tiers::host);
    first += size;
  }
  open(CommunicatorId(id), leaders, &Tiers::leaders);
  for (Tiers& tiers : tiers_) tiers.host_sizes = options.host_sizes;
}

void TestWorld::AddRank(int32_t rank, const TestWorldOptions& options) {
  const auto index = static_cast<size_t>(rank);
  Tiers& tiers = tiers_[index];
  algorithms_.push_back(*MakeAlgorithm(options.algorithm, options.algorithm_options));
  Algorithm& algorithm = *algorithms_.back();
  if (!algorithm.IsHierarchical()) tiers = Tiers::Of(*tiers.all);
  const Communicator* const peers_of = tiers.are_open() ? tiers.leaders : tiers.all;
  if (!options.peers.empty() && peers_of != nullptr) {
    tiers.peers = options.peers[static_cast<size_t>(peers_of->rank().value())];
  }
  runners_.push_back(std::make_unique<TieredRunner>(tiers));
  PlanOptions plan;
  plan.world_size = fabric_.world_size();
  plan.bucket_size_bytes = options.bucket_size_bytes;
  plan.constraints = algorithm.Constraints();
  ModelRoundsOptions rounds;
  rounds.rank = Rank(rank);
  rounds.executor = &executor_;
  rounds.runner = runners_.back().get();
  rounds.pipeline_factory = [&algorithm, &tiers](const BucketLayout& layout) {
    return MakePipeline(algorithm, layout, tiers);
  };
  rounds.operation_timeout = kPatience;
  absl::StatusOr<std::unique_ptr<ModelRounds>> made =
      ModelRounds::Create(*Plan::Build(tensors_, plan), std::move(rounds));
  PELTON_CHECK_OK(made.status());
  rounds_.push_back(*std::move(made));
}

uint64_t TestWorld::BucketBytes() {
  uint64_t bytes = 0;
  for (const BucketLayout& bucket : plan().buckets()) {
    bytes += bucket.flat_count * SizeOf(bucket.dtype);
  }
  return bytes;
}

void TestWorld::Write(int32_t rank, const Values& values) {
  for (size_t slot = 0; slot < values.size(); ++slot) {
    std::byte* const data = rounds(rank).DataOf(SlotId(static_cast<int32_t>(slot)));
    if (values[slot].empty()) continue;
    std::memcpy(data, values[slot].data(), values[slot].size() * sizeof(float));
  }
}

Values TestWorld::ValuesOf(int32_t rank) {
  Values values;
  for (size_t slot = 0; slot < tensors_.size(); ++slot) {
    const SlotResult result = rounds(rank).ResultOf(SlotId(static_cast<int32_t>(slot)));
    const auto* const floats = reinterpret_cast<const float*>(result.data);
    values.emplace_back(floats, floats + tensors_[slot].count);
  }
  return values;
}

Values TestWorld::StateOf(int32_t rank, const std::string& key) {
  Values values(tensors_.size());
  for (const SlotState& state : rounds(rank).States()) {
    if (state.key != key) continue;
    const auto* const floats = reinterpret_cast<const float*>(state.bytes.data());
    values[static_cast<size_t>(state.slot.value())].assign(
        floats, floats + state.bytes.size() / sizeof(float));
  }
  return values;
}

void TestWorld::Prime(const Values& values) {
  for (int32_t rank = 0; rank < size(); ++rank) {
    Write(rank, values);
    rounds(rank).Prime();
  }
}

std::vector<TestWorld::Mark> TestWorld::MarksOfARound() {
  std::vector<Mark> marks;
  for (int32_t rank = 0; rank < size(); ++rank) {
    for (size_t slot = 0; slot < tensors_.size(); ++slot) {
      marks.push_back({rank, static_cast<int32_t>(slot)});
    }
  }
  if (!disturbed_) return marks;
  for (size_t i = marks.size(); i > 1; --i) std::swap(marks[i - 1], marks[executor_.Uniform(i)]);
  return marks;
}

std::vector<absl::Status> TestWorld::Round() {
  if (disturbed_ && executor_.Uniform(3) == 0) {
    const auto slow = static_cast<int32_t>(executor_.Uniform(static_cast<uint64_t>(size())));
    const auto late = absl::Microseconds(static_cast<int64_t>(executor_.Uniform(2000)));
    fabric_.Stall(Rank(slow), executor_.Now() + late);
  }
  for (const Mark& mark : MarksOfARound()) {
    PELTON_CHECK_OK(rounds(mark.rank).MarkReady(SlotId(mark.slot)));
    if (disturbed_ && executor_.Uniform(4) == 0) {
      executor_.Step(executor_.Now() + absl::Microseconds(50));
    }
  }
  const absl::Time deadline = executor_.Now() + 2 * kPatience;
  std::vector<Future<void>> done;
  for (int32_t rank = 0; rank < size(); ++rank) {
    PELTON_CHECK_OK(rounds(rank).EndRound());
    done.push_back(rounds(rank).RoundDone(deadline));
  }
  std::vector<absl::Status> statuses;
  for (int32_t rank = 0; rank < size(); ++rank) {
    absl::Status status = std::move(done[static_cast<size_t>(rank)]).Await(deadline);
    statuses.push_back(rounds(rank).CloseRound(std::move(status)));
  }
  return statuses;
}

std::vector<Values> TestWorld::Round(const std::vector<Values>& values) {
  for (int32_t rank = 0; rank < size(); ++rank) Write(rank, values[static_cast<size_t>(rank)]);
  for (const absl::Status& status : Round()) PELTON_CHECK_OK(status);
  std::vector<Values> results;
  for (int32_t rank = 0; rank < size(); ++rank) results.push_back(ValuesOf(rank));
  return results;
}

Values TestWorld::Ramp(const std::vector<TensorSpec>& tensors, int32_t rank, uint64_t round) {
  Values values;
  for (size_t slot = 0; slot < tensors.size(); ++slot) {
    std::vector<float> elements(tensors[slot].count);
    for (size_t i = 0; i < elements.size(); ++i) {
      const uint64_t mixed = (i * 37 + slot * 11 + static_cast<uint64_t>(rank) * 131) % 97;
      elements[i] =
          (static_cast<float>(mixed) - 41.0F) * 0.37F * (1.0F + static_cast<float>(round) * 0.25F);
    }
    values.push_back(std::move(elements));
  }
  return values;
}

}  // namespace pelton
