// Exponential graphs: from rank i an edge to i + d for each power d of a base below n, all with the
// same weight, which is also a rank's own. As many edges as log n, and a spectral gap of about
// 1 / log n.
//
// symmetric_exponential has an edge for d where d, or n - d if d is beyond n / 2, is such a power.
// one_peer_exponential takes one power of 2 after another, each for a step, with weights 1/2: for n
// a power of 2 all ranks hold the exact mean after log2(n) steps.
// Source: Ying et al., Exponential Graph is Provably Efficient for Decentralized Deep Training,
// arXiv 2110.13363; BlueFog's ExponentialTwoGraph, ExponentialGraph and SymmetricExponentialGraph
// (which leave out some powers that its logarithm misses, such as 243 of base 3).
#include <bit>
#include <memory>
#include <vector>

#include "comm/graph/graph_sequence.h"

namespace pelton {
namespace {

bool IsPower(int32_t value, uint64_t base) {
  uint64_t power = 1;
  while (power < static_cast<uint64_t>(value)) power *= base;
  return power == static_cast<uint64_t>(value);
}

// Threads: as GraphBuilder. Owns: its option.
class Exponential : public GraphBuilder {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("base", &base_, 2, "edges go to the distances that are its powers");
  }
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    std::vector<int32_t> distances;
    for (int32_t distance = 1; distance < size.value(); ++distance) {
      if (IsPower(Folded(distance, size.value()), base_)) distances.push_back(distance);
    }
    return std::make_unique<StaticGraph>(EqualCirculantGraph(size, distances));
  }

 protected:
  explicit Exponential(uint64_t base) : base_(base) {}
  virtual int32_t Folded(int32_t distance, int32_t) const { return distance; }

 private:
  uint64_t base_;
};

// Threads: as GraphBuilder. Owns: its option.
class ExponentialOfAnyBase final : public Exponential {
 public:
  ExponentialOfAnyBase() : Exponential(2) {}
};

// Threads: as GraphBuilder. Owns: its option.
class SymmetricExponential final : public Exponential {
 public:
  SymmetricExponential() : Exponential(4) {}

 protected:
  int32_t Folded(int32_t distance, int32_t size) const override {
    return distance <= size / 2 ? distance : size - distance;
  }
};

// Threads: any. Owns: nothing.
class OnePeerExponentialGraphs final : public GraphSequence {
 public:
  explicit OnePeerExponentialGraphs(WorldSize size) : size_(size) {}
  WorldSize size() const override { return size_; }
  uint64_t period() const override {
    return size_.value() == 1 ? 1 : std::bit_width(static_cast<uint32_t>(size_.value() - 1));
  }
  Graph At(uint64_t step) const override {
    if (size_.value() == 1) return EqualCirculantGraph(size_, {});
    return EqualCirculantGraph(size_, {static_cast<int32_t>(1) << (step % period())});
  }

 private:
  const WorldSize size_;
};

// Threads: as GraphBuilder. Owns: nothing.
class OnePeerExponential final : public GraphBuilder {
 public:
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    return std::make_unique<OnePeerExponentialGraphs>(size);
  }
};

REGISTER_GRAPH(exponential, "edges to the distances that are powers of a base",
               ExponentialOfAnyBase);
REGISTER_GRAPH(symmetric_exponential, "the same in both directions", SymmetricExponential);
REGISTER_GRAPH(one_peer_exponential, "one power of 2 after another, each for a step",
               OnePeerExponential);

}  // namespace
}  // namespace pelton
