// EquiTopo: graphs whose rate of mixing does not depend on the number of ranks.
//
// With A_u the circulant graph in which rank i sends to i + u: own weight 1/n, edge (n - 1)/n.
//   equi_static  the mean of A_u over some distances u, drawn at random; about log n of them. With
//                `symmetric` the mean of A_u and its transpose.
//   equi_dyn     in each step (1 - eta) I + eta A_u with one u, drawn anew from seed and step. It
//                never repeats.
// Distances are drawn without repetition, and until they and n have no common divisor: else the
// ranks would fall into groups that never meet.
// Source: Song et al., Communication-Efficient Topologies for Decentralized Learning with O(1)
// Consensus Rate, arXiv 2210.07881: D-EquiStatic, U-EquiStatic, OD-EquiDyn.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/graph/graph_sequence.h"
#include "core/base/split_mix.h"

namespace pelton {
namespace {

// One of 1 to size - 1, the same on every machine. Requires: size > 1.
int32_t Drawn(uint64_t seed, uint64_t number, int32_t size) {
  return static_cast<int32_t>(1 + SplitMix(seed, number) % static_cast<uint64_t>(size - 1));
}

// Adds factor * A_u.
void AddShift(int32_t u, double factor, std::vector<double>& weights) {
  const auto n = static_cast<double>(weights.size());
  weights[0] += factor / n;
  weights[static_cast<size_t>(u)] += factor * (n - 1) / n;
}

// `count` different distances, with whose steps everyone reaches everyone.
std::vector<int32_t> DrawnDistances(uint64_t seed, uint64_t count, int32_t size) {
  for (uint64_t attempt = 0;; ++attempt) {
    std::vector<int32_t> drawn;
    int32_t divisor = size;
    for (uint64_t number = 0; drawn.size() < count; ++number) {
      const int32_t u = Drawn(SplitMix(seed, attempt), number, size);
      if (std::find(drawn.begin(), drawn.end(), u) != drawn.end()) continue;
      drawn.push_back(u);
      divisor = std::gcd(divisor, u);
    }
    if (divisor == 1) return drawn;
  }
}

// Threads: as GraphBuilder. Owns: its options.
class EquiStatic final : public GraphBuilder {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("distances", &distances_, 0, "how many; 0: 2 ln n, rounded up");
    table.Bool("symmetric", &symmetric_, "edges in both directions");
    table.Count("seed", &seed_, 0, "of what is drawn, the same on all ranks");
  }
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    const int32_t n = size.value();
    if (n == 1) return std::make_unique<StaticGraph>(EqualCirculantGraph(size, {}));
    const auto usual = static_cast<uint64_t>(std::ceil(2 * std::log(n)));
    const uint64_t count =
        std::min(distances_ == 0 ? usual : distances_, static_cast<uint64_t>(n - 1));
    std::vector<double> weights(static_cast<size_t>(n));
    const double share = (symmetric_ ? 0.5 : 1.0) / static_cast<double>(count);
    for (const int32_t u : DrawnDistances(seed_, count, n)) {
      AddShift(u, share, weights);
      if (symmetric_) AddShift(n - u, share, weights);
    }
    return std::make_unique<StaticGraph>(CirculantGraph(weights));
  }

 private:
  uint64_t distances_ = 0;
  bool symmetric_ = false;
  uint64_t seed_ = 0;
};

// Threads: any. Owns: nothing.
class EquiDynGraphs final : public GraphSequence {
 public:
  EquiDynGraphs(WorldSize size, double eta, uint64_t seed) : size_(size), eta_(eta), seed_(seed) {}
  WorldSize size() const override { return size_; }
  uint64_t period() const override { return size_.value() > 2 ? 0 : 1; }
  Graph At(uint64_t step) const override {
    std::vector<double> weights(static_cast<size_t>(size_.value()));
    if (size_.value() == 1) return EqualCirculantGraph(size_, {});
    AddShift(Drawn(seed_, step, size_.value()), eta_, weights);
    weights[0] += 1 - eta_;
    return CirculantGraph(weights);
  }

 private:
  const WorldSize size_;
  const double eta_;
  const uint64_t seed_;
};

// Threads: as GraphBuilder. Owns: its options.
class EquiDyn final : public GraphBuilder {
 public:
  void BindOptions(OptionTable& table) override {
    table.Number("eta", &eta_, {0.01, 1}, "how much of what is received counts");
    table.Count("seed", &seed_, 0, "of what is drawn, the same on all ranks");
  }
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    return std::make_unique<EquiDynGraphs>(size, eta_, seed_);
  }

 private:
  double eta_ = 0.5;
  uint64_t seed_ = 0;
};

REGISTER_GRAPH(equi_static,
               "some distances drawn at random, which mix as fast for any number of ranks",
               EquiStatic);
REGISTER_GRAPH(equi_dyn, "one distance drawn at random in each step", EquiDyn);

}  // namespace
}  // namespace pelton
