#include "comm/transport/conformance/average.h"

#include "absl/strings/str_cat.h"
#include "comm/await.h"
#include "comm/neighbors.h"
#include "core/base/split_mix.h"
#include "core/base/status.h"

namespace pelton::conformance {

float Average::InputOf(size_t rank, uint64_t i) const {
  return static_cast<float>(SplitMix(seed + rank, i) % 128) - 64;
}

float Average::ExpectedOf(size_t rank, uint64_t i) const {
  double sum = 0;
  for (size_t source = 0; source < weights.size(); ++source) {
    sum += weights[source][rank] * static_cast<double>(InputOf(source, i));
  }
  return static_cast<float>(sum);
}

std::shared_ptr<const WeightTable> Average::TableOf(size_t rank) const {
  Neighborhood mine{.own = weights[rank][rank]};
  for (size_t other = 0; other < weights.size(); ++other) {
    const Rank peer(static_cast<int32_t>(other));
    if (other == rank) continue;
    if (weights[other][rank] != 0) mine.sources.push_back({peer, weights[other][rank]});
    if (weights[rank][other] != 0) mine.destinations.push_back({peer, weights[rank][other]});
  }
  return WeightTable::Create(mine).value();
}

Average DrawAverage(Draws& draws, WorldSize size, uint64_t count) {
  constexpr double kWeights[] = {0.25, 0.5, 1, -2};
  const auto ranks = static_cast<size_t>(size.value());
  Average average;
  average.weights.assign(ranks, std::vector<double>(ranks));
  for (size_t source = 0; source < ranks; ++source) {
    for (size_t destination = 0; destination < ranks; ++destination) {
      if (source != destination && draws.OneIn(2)) continue;
      average.weights[source][destination] = kWeights[draws.Below(4)];
    }
  }
  average.count = count;
  average.seed = draws.Below(1 << 30);
  average.tag = static_cast<int32_t>(draws.Below(2));
  average.in_place = draws.OneIn(2);
  average.in_region = draws.OneIn(2);
  return average;
}

RankAverage::RankAverage(const Average& average, Rank rank, RankMemory& memory)
    : average_(average), rank_(static_cast<size_t>(rank.value())) {
  Arena& arena = average.in_region ? memory.region : memory.own;
  source_ = Allocate(arena);
  target_ = average.in_place ? source_ : Allocate(arena);
  for (uint64_t i = 0; i < average.count; ++i) source_[i] = average.InputOf(rank_, i);
}

float* RankAverage::Allocate(Arena& arena) const {
  return reinterpret_cast<float*>(arena.Allocate(average_.count * sizeof(float), sizeof(float)));
}

absl::Status RankAverage::Launch(Communicator& communicator) {
  table_ = average_.TableOf(rank_);
  const Tensor source{source_, average_.count, DType::kFloat32};
  const Tensor target{target_, average_.count, DType::kFloat32};
  ASSIGN_OR_RETURN(completion_,
                   NeighborAllReduce(communicator, source, target, *table_, {.tag = average_.tag}));
  return absl::OkStatus();
}

absl::Status RankAverage::AwaitAll(Communicator& communicator, absl::Time deadline) {
  return Await(communicator, completion_, deadline);
}

std::string RankAverage::Check() const {
  for (uint64_t i = 0; i < average_.count; ++i) {
    if (target_[i] != average_.ExpectedOf(rank_, i)) {
      return absl::StrCat("average: element ", i, " of ", average_.count, " is ", target_[i],
                          " and not ", average_.ExpectedOf(rank_, i));
    }
    if (!average_.in_place && source_[i] != average_.InputOf(rank_, i)) {
      return absl::StrCat("average: element ", i, " of the source was written");
    }
  }
  return "";
}

}  // namespace pelton::conformance
