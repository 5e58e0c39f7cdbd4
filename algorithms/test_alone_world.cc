#include "algorithms/test_alone_world.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "comm/group.h"
#include "comm/reduction/linear_combination.h"
#include "comm/tiers.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/plan/plan.h"
#include "core/plan/round_mode.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

std::byte* BytesOf(double* values) { return reinterpret_cast<std::byte*>(values); }

void AddTo(std::vector<double>& sums, const std::byte* elements, DType dtype) {
  const Term terms[] = {{BytesOf(sums.data()), 1, DType::kFloat64}, {elements, 1, dtype}};
  LinearCombination(terms, {BytesOf(sums.data()), DType::kFloat64}, sums.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Window>> AloneWorld::SeenSource::Make(WindowOptions options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Window> window, source_.Make(std::move(options)));
  seen_.push_back(window.get());
  return window;
}

AloneWorld::AloneWorld(const AloneCase& one)
    : dtype_(one.dtype),
      executor_(one.seed),
      fabric_(WorldSize(one.size)),
      windows_(one.size),
      ranks_(static_cast<size_t>(one.size)) {
  executor_.AddEventSource(&fabric_);
  communicators_ = *fabric_.OpenAll(CommunicatorId(1), Group::World(WorldSize(one.size)));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size(); ++rank) {
    threads.emplace_back([this, rank, &one] { MakePipelines(rank, one); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int32_t rank = 0; rank < size(); ++rank) MakeRounds(rank);
}

AloneWorld::~AloneWorld() {
  ranks_.clear();
  communicators_.clear();
  executor_.RemoveEventSource(&fabric_);
}

Plan AloneWorld::MakePlan() const {
  PlanOptions options;
  options.world_size = WorldSize(size());
  options.bucket_size_bytes = 1;  // each tensor is a bucket of its own
  options.constraints.allows_standalone = false;
  return *Plan::Build({{.name = "a", .dtype = dtype_, .count = kCounts[0]},
                       {.name = "b", .dtype = dtype_, .count = kCounts[1]}},
                      options);
}

void AloneWorld::MakePipelines(int32_t rank, const AloneCase& one) {
  OneRank& here = At(rank);
  here.source = std::make_unique<SeenSource>(windows_.source(rank), here.windows);
  here.algorithm = *MakeAlgorithm(one.algorithm, one.options);
  Tiers tiers = Tiers::Of(*communicators_[static_cast<size_t>(rank)]);
  tiers.windows = here.source.get();
  const Plan plan = MakePlan();
  for (const BucketLayout& layout : plan.buckets()) {
    here.pipelines.push_back(*MakePipeline(*here.algorithm, layout, tiers));
  }
}

void AloneWorld::MakeRounds(int32_t rank) {
  OneRank& here = At(rank);
  for (size_t i = 0; i < kElements; ++i) {
    here.weights.push_back(static_cast<double>(Uniform(1000)));
  }
  ModelRoundsOptions options;
  options.rank = Rank(rank);
  options.executor = &executor_;
  options.runner = communicators_[static_cast<size_t>(rank)].get();
  options.pipeline_factory = [&here](const BucketLayout& layout) {
    return std::move(here.pipelines[static_cast<size_t>(layout.id.value())]);
  };
  here.rounds = *ModelRounds::Create(MakePlan(), std::move(options));
}

absl::Status AloneWorld::Begin(int32_t rank, bool only_collects) {
  ModelRounds& rounds = *At(rank).rounds;
  rounds.SetMode(only_collects ? RoundMode::kCollecting : RoundMode::kTraining);
  for (int32_t slot = 0; slot < 2; ++slot) {
    const Term weights{BytesOf(WeightsOf(rank, slot)), 1, DType::kFloat64};
    LinearCombination({&weights, 1}, {rounds.DataOf(SlotId(slot)), dtype_}, kCounts[slot]);
    RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot)));
  }
  At(rank).is_under_way = true;
  return rounds.EndRound();
}

// The sum is rounded as the tensor's elements are.
absl::Status AloneWorld::Finish(int32_t rank) {
  ModelRounds& rounds = *At(rank).rounds;
  At(rank).is_under_way = false;
  RETURN_IF_ERROR(rounds.WaitRound(executor_.Now() + absl::Seconds(100)));
  for (int32_t slot = 0; slot < 2; ++slot) {
    std::byte* const weights = BytesOf(WeightsOf(rank, slot));
    std::byte* const change = rounds.ResultOf(SlotId(slot)).data;
    std::vector<std::byte> rounded(kCounts[slot] * SizeOf(dtype_));
    const Term before[] = {{weights, 1, DType::kFloat64}};
    LinearCombination(before, {rounded.data(), dtype_}, kCounts[slot]);
    const Term sum[] = {{rounded.data(), 1, dtype_}, {change, 1, dtype_}};
    LinearCombination(sum, {rounded.data(), dtype_}, kCounts[slot]);
    const Term after[] = {{rounded.data(), 1, dtype_}};
    LinearCombination(after, {weights, DType::kFloat64}, kCounts[slot]);
  }
  return absl::OkStatus();
}

absl::Status AloneWorld::Run(int32_t rank) {
  RETURN_IF_ERROR(Begin(rank));
  return Finish(rank);
}

void AloneWorld::RunAny(int count) {
  for (int round = 0; round < count; ++round) {
    const int32_t rank = AnyRank();
    ASSERT_TRUE(Run(rank).ok()) << rank;
  }
}

void AloneWorld::RunInterleaved(int halves) {
  for (int half = 0; half < halves; ++half) {
    const int32_t rank = AnyRank();
    ASSERT_TRUE((is_under_way(rank) ? Finish(rank) : Begin(rank)).ok()) << rank;
  }
  for (int32_t rank = 0; rank < size(); ++rank) {
    if (!is_under_way(rank)) continue;
    ASSERT_TRUE(Finish(rank).ok()) << rank;
  }
}

void AloneWorld::CollectAll() {
  for (int32_t rank = 0; rank < size(); ++rank) {
    ASSERT_TRUE(Begin(rank, /*only_collects=*/true).ok()) << rank;
  }
  for (int32_t rank = 0; rank < size(); ++rank) ASSERT_TRUE(Finish(rank).ok()) << rank;
}

std::vector<double> AloneWorld::Sums() {
  std::vector<double> sums(kElements);
  for (const OneRank& rank : ranks_) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += rank.weights[i];
  }
  return sums;
}

double AloneWorld::Spread(const std::vector<int32_t>& ranks) {
  double spread = 0;
  for (size_t i = 0; i < kElements; ++i) {
    double sum = 0;
    for (const int32_t rank : ranks) sum += weights(rank)[i];
    for (const int32_t rank : ranks) {
      const double mean = sum / static_cast<double>(ranks.size());
      spread = std::max(spread, std::abs(weights(rank)[i] - mean));
    }
  }
  return spread;
}

double AloneWorld::Spread() {
  std::vector<int32_t> all;
  for (int32_t rank = 0; rank < size(); ++rank) all.push_back(rank);
  return Spread(all);
}

std::vector<std::vector<double>> AloneWorld::BucketsOf(int32_t rank, const std::string& name,
                                                       bool slots) {
  std::vector<std::vector<double>> buckets;
  for (const Window* window : At(rank).windows) {
    if (!absl::StartsWith(window->options().name, name)) continue;
    const Tensor& tensor = window->options().tensor;
    std::vector<double>& sums = buckets.emplace_back(tensor.count);
    AddTo(sums, static_cast<const std::byte*>(tensor.data), tensor.dtype);
    for (size_t i = 0; slots && i < window->options().sources.size(); ++i) {
      const EdgeView edge = window->edge_from(i);
      const Inlet::View seen = edge.inlet->Take({});
      if (!seen.is_zero) AddTo(sums, edge.buffer(seen.buffer), tensor.dtype);
      edge.inlet->Release();
    }
  }
  return buckets;
}

AloneWorld::Held AloneWorld::HeldOf(const std::vector<std::vector<double>>& buckets) const {
  const Plan plan = MakePlan();
  Held held;
  for (int32_t slot = 0; slot < 2; ++slot) {
    const auto index = static_cast<size_t>(plan.slot(SlotId(slot)).bucket.value());
    const std::vector<double>& bucket = buckets[index];
    held.elements.insert(held.elements.end(), bucket.begin(),
                         bucket.begin() + static_cast<int64_t>(kCounts[slot]));
    held.last.push_back(bucket.back());
  }
  return held;
}

AloneWorld::Held AloneWorld::TensorsOf(int32_t rank, const std::string& name) {
  return HeldOf(BucketsOf(rank, name, /*slots=*/false));
}

AloneWorld::Held AloneWorld::InWindows(const std::string& name) {
  std::vector<std::vector<double>> sums;
  for (int32_t rank = 0; rank < size(); ++rank) {
    PELTON_CHECK(!is_under_way(rank)) << rank;
    const auto buckets = BucketsOf(rank, name, /*slots=*/true);
    sums.resize(buckets.size());
    for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      sums[bucket].resize(buckets[bucket].size());
      for (size_t i = 0; i < sums[bucket].size(); ++i) sums[bucket][i] += buckets[bucket][i];
    }
  }
  return HeldOf(sums);
}

}  // namespace pelton
