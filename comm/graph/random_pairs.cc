// Pairs at random, anew in each step, from a seed that all ranks know: both ends take the mean.
// With an odd number of ranks one sits each step out. It never repeats.
// Source: Boyd et al., Randomized Gossip Algorithms, IEEE Transactions on Information Theory 52(6),
// 2006, with a whole matching in each step instead of one pair.
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/graph/graph_sequence.h"
#include "core/base/split_mix.h"

namespace pelton {
namespace {

// Threads: any. Owns: nothing.
class RandomPairsGraphs final : public GraphSequence {
 public:
  RandomPairsGraphs(WorldSize size, uint64_t seed) : size_(size), seed_(seed) {}
  WorldSize size() const override { return size_; }
  // One rank alone, and two, have the same graph in every step.
  uint64_t period() const override { return size_.value() <= 2 ? 1 : 0; }
  Graph At(uint64_t step) const override {
    std::vector<int32_t> order(static_cast<size_t>(size_.value()));
    std::iota(order.begin(), order.end(), 0);
    const uint64_t seed = SplitMix(seed_, step);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[SplitMix(seed, i) % i]);
    std::vector<double> own(order.size(), 1);
    std::vector<Graph::Edge> edges;
    for (size_t i = 0; i + 1 < order.size(); i += 2) {
      edges.push_back({order[i], order[i + 1], 0.5});
      edges.push_back({order[i + 1], order[i], 0.5});
      own[static_cast<size_t>(order[i])] = 0.5;
      own[static_cast<size_t>(order[i + 1])] = 0.5;
    }
    return GraphOf(std::move(own), std::move(edges));
  }

 private:
  const WorldSize size_;
  const uint64_t seed_;
};

// Threads: as GraphBuilder. Owns: its options.
class RandomPairs final : public GraphBuilder {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("seed", &seed_, 0, "of the pairs, the same on all ranks");
  }
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    return std::make_unique<RandomPairsGraphs>(size, seed_);
  }

 private:
  uint64_t seed_ = 0;
};

REGISTER_GRAPH(random_pairs, "pairs at random, anew in each step", RandomPairs);

}  // namespace
}  // namespace pelton
