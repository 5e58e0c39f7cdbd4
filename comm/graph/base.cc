// The Base-(k+1) graph: rounds in which nobody exchanges with more than k others, and after whose
// period all ranks hold the exact mean, however many they are.
//
// A number of ranks whose prime factors are all at most k + 1 needs a hypercube of mixed radix:
// with n = f_1 f_2 ... f_s the ranks of a group of f_t, which differ in their t-th digit alone,
// take their mean in round t.
//
// Any other n = a_1 (k+1)^p_1 + ... + a_L (k+1)^p_L, with digits a_l from 1 to k and falling
// powers, is cut into parts of these sizes, and part l into a_l blocks. Let S_l be the ranks in the
// parts from l on.
//   1. Every part takes its mean, by a hypercube, in the rounds that part 1 needs.
//   2. In round l of the next L - 1 every rank behind part l exchanges with a rank of its own in
//   each
//      block of part l, with the weight n_l / (S_l a_l). The values of a part being equal until
//      then, both the blocks of part l and the ranks behind it have the mean of all afterwards.
//   3. Each block takes its mean, by a hypercube, as soon as its part is through with 2.
// That is the simple form. Where n = p q with p the largest factor whose primes are at most k + 1,
// groups of q ranks can run it side by side, followed by a hypercube of p; the shorter one is
// taken. Source: Takezawa et al., Beyond Exponential Graph: Communication-Efficient Topologies for
// Decentralized Learning via Finite-time Convergence, arXiv 2305.11420, algorithms 1 to 3, without
// the further exchanges among ranks that have nothing to do in a round.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "comm/graph/graph_sequence.h"
#include "core/base/status.h"

namespace pelton {
namespace {

using Ranks = std::vector<int32_t>;

// One round while it is put together. Threads: one. Owns: its weights.
struct Exchanges {
  std::vector<double> own;
  std::vector<Graph::Edge> edges;

  void Add(int32_t a, int32_t b, double weight) {
    edges.push_back({a, b, weight});
    edges.push_back({b, a, weight});
    own[static_cast<size_t>(a)] -= weight;
    own[static_cast<size_t>(b)] -= weight;
  }
};

// Rounds of `size` ranks, made when they are first spoken of. Threads: one. Owns: the rounds.
class Rounds {
 public:
  explicit Rounds(size_t size) : size_(size) {}
  Exchanges& At(size_t round) {
    while (rounds_.size() <= round) rounds_.push_back({std::vector<double>(size_, 1), {}});
    return rounds_[round];
  }
  size_t count() const { return rounds_.size(); }
  std::vector<Exchanges>& all() { return rounds_; }

 private:
  const size_t size_;
  std::vector<Exchanges> rounds_;
};

// The factors of `size`, none above `largest`; their product is less where it has a larger prime.
std::vector<int32_t> FactorsOf(int32_t size, int32_t largest) {
  std::vector<int32_t> factors;
  for (int32_t factor = largest; factor > 1; --factor) {
    for (; size % factor == 0; size /= factor) factors.push_back(factor);
  }
  return factors;
}

int32_t ProductOf(const std::vector<int32_t>& factors) {
  int32_t product = 1;
  for (const int32_t factor : factors) product *= factor;
  return product;
}

// The ranks take their mean from round `begin` on. Requires: the factors' product is their number.
void AddHypercube(const Ranks& ranks, const std::vector<int32_t>& factors, size_t begin,
                  Rounds& rounds) {
  size_t stride = 1;
  for (size_t t = 0; t < factors.size(); ++t) {
    const auto factor = static_cast<size_t>(factors[t]);
    Exchanges& round = rounds.At(begin + t);
    for (size_t place = 0; place < ranks.size(); ++place) {
      const size_t digit = place / stride % factor;
      for (size_t higher = digit + 1; higher < factor; ++higher) {
        round.Add(ranks[place], ranks[place + (higher - digit) * stride],
                  1.0 / static_cast<double>(factor));
      }
    }
    stride *= factor;
  }
}

// A part of the ranks: `blocks` blocks of `block_size` each.
struct Part {
  Ranks ranks;
  int32_t blocks;
  int32_t block_size;

  std::vector<int32_t> BlockFactors(int32_t base) const { return FactorsOf(block_size, base); }
  // Of the whole part: its digit is below the base.
  std::vector<int32_t> Factors(int32_t base) const {
    std::vector<int32_t> factors = BlockFactors(base);
    if (blocks > 1) factors.push_back(blocks);
    return factors;
  }
};

std::vector<Part> PartsOf(const Ranks& ranks, int32_t base) {
  const auto size = static_cast<int32_t>(ranks.size());
  int32_t power = 1;
  while (power <= size / base) power *= base;
  std::vector<Part> parts;
  int32_t begin = 0;
  for (; power > 0; power /= base) {
    const int32_t digit = (size - begin) / power;
    if (digit == 0) continue;
    const int32_t end = begin + digit * power;
    parts.push_back({Ranks(ranks.begin() + begin, ranks.begin() + end), digit, power});
    begin = end;
  }
  return parts;
}

// Step 2 of part `l`, in `round`.
void AddExchanges(const std::vector<Part>& parts, size_t l, Exchanges& round) {
  const Part& part = parts[l];
  size_t from_here = 0;  // S_l
  for (size_t i = l; i < parts.size(); ++i) from_here += parts[i].ranks.size();
  const double weight = static_cast<double>(part.ranks.size()) /
                        static_cast<double>(from_here * static_cast<size_t>(part.blocks));
  size_t place = 0;  // in each block
  for (size_t i = l + 1; i < parts.size(); ++i) {
    for (const int32_t rank : parts[i].ranks) {
      for (size_t block = 0; block < static_cast<size_t>(part.blocks); ++block) {
        const size_t mate = block * static_cast<size_t>(part.block_size) + place;
        round.Add(rank, part.ranks[mate], weight);
      }
      ++place;
    }
  }
}

void AddSimpleBase(const Ranks& ranks, int32_t base, Rounds& rounds) {
  const std::vector<int32_t> factors = FactorsOf(static_cast<int32_t>(ranks.size()), base);
  if (ProductOf(factors) == static_cast<int32_t>(ranks.size())) {
    return AddHypercube(ranks, factors, 0, rounds);
  }
  const std::vector<Part> parts = PartsOf(ranks, base);
  const size_t means_at = parts[0].Factors(base).size();
  for (const Part& part : parts) AddHypercube(part.ranks, part.Factors(base), 0, rounds);
  for (size_t l = 0; l + 1 < parts.size(); ++l) {
    AddExchanges(parts, l, rounds.At(means_at + l));
    const auto each = parts[l].block_size;
    for (auto block = parts[l].ranks.begin(); block != parts[l].ranks.end(); block += each) {
      AddHypercube(Ranks(block, block + each), parts[l].BlockFactors(base), means_at + l + 1,
                   rounds);
    }
  }
}

Ranks RanksFrom(int32_t begin, int32_t count, int32_t stride) {
  Ranks ranks;
  for (int32_t i = 0; i < count; ++i) ranks.push_back(begin + i * stride);
  return ranks;
}

// The shorter of both forms.
std::vector<Exchanges> RoundsOf(int32_t size, int32_t base) {
  Rounds simple(static_cast<size_t>(size));
  AddSimpleBase(RanksFrom(0, size, 1), base, simple);
  const std::vector<int32_t> factors = FactorsOf(size, base);
  const int32_t smooth = ProductOf(factors);
  const int32_t rest = size / smooth;
  Rounds grouped(static_cast<size_t>(size));
  for (int32_t group = 0; group < smooth; ++group) {
    AddSimpleBase(RanksFrom(group * rest, rest, 1), base, grouped);
  }
  const size_t side_by_side = grouped.count();
  for (int32_t i = 0; i < rest; ++i) {
    AddHypercube(RanksFrom(i, smooth, rest), factors, side_by_side, grouped);
  }
  Rounds& shorter = grouped.count() < simple.count() ? grouped : simple;
  shorter.At(0);  // alone, too, there is a round
  return std::move(shorter.all());
}

// Threads: any. Owns: the graphs of a period.
class BaseGraphs final : public GraphSequence {
 public:
  explicit BaseGraphs(std::vector<Graph> graphs) : graphs_(std::move(graphs)) {}
  WorldSize size() const override { return graphs_[0].size(); }
  uint64_t period() const override { return graphs_.size(); }
  Graph At(uint64_t step) const override { return graphs_[step % graphs_.size()]; }

 private:
  const std::vector<Graph> graphs_;
};

// Threads: as GraphBuilder. Owns: its option.
class Base final : public GraphBuilder {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("peers", &peers_, 1, "k, the most that a rank exchanges with in a step");
  }
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    // More peers than there are others change nothing.
    const auto base = static_cast<int32_t>(
        std::min<uint64_t>(peers_, static_cast<uint64_t>(std::max(1, size.value() - 1))) + 1);
    std::vector<Graph> graphs;
    for (Exchanges& round : RoundsOf(size.value(), base)) {
      ASSIGN_OR_RETURN(Graph graph, Graph::Create(std::move(round.own), std::move(round.edges)));
      graphs.push_back(std::move(graph));
    }
    return std::make_unique<BaseGraphs>(std::move(graphs));
  }

 private:
  uint64_t peers_ = 1;
};

REGISTER_GRAPH(base, "few peers a step, and the exact mean after a period for any number of ranks",
               Base);

}  // namespace
}  // namespace pelton
