// Ranks that average over a graph, held against plain loops in one process.
#ifndef PELTON_ALGORITHMS_TEST_GRAPH_WORLD_H_
#define PELTON_ALGORITHMS_TEST_GRAPH_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/test_world.h"
#include "comm/graph/graph_sequence.h"

namespace pelton {

// One tensor on all ranks, by rank.
using Columns = std::vector<std::vector<float>>;

// factor * x of all terms, added up from the left, in float32.
float Combined(std::initializer_list<std::pair<double, float>> terms);
// As each rank takes it of itself and of its sources.
Columns MeansOf(const Columns& columns, const Graph& graph);
// The mean of all ranks, on every rank, added in rank order.
Columns GlobalMeansOf(const Columns& columns);
// Edges of the graph; each rank gives equal shares.
Graph EqualSharesOf(const Graph& graph);

// One tensor of an algorithm on all ranks. Threads: one. Owns: its state.
class GraphReference {
 public:
  virtual ~GraphReference() = default;
  // `x`: the weights after the optimizers' steps, then after the round. Rounds count from 1.
  virtual void Round(Columns& x, uint64_t round) = 0;
};

// Threads: a value. Owns: its texts.
struct GraphCase {
  std::string algorithm;
  AlgorithmOptions options;  // graph among them
  int32_t size = 1;
  uint64_t disturbing_seed = 0;  // 0: undisturbed
  uint64_t rounds = 6;

  // Those of its option graph.
  std::unique_ptr<GraphSequence> graphs() const;
};
using ReferenceMaker =
    std::function<std::unique_ptr<GraphReference>(const GraphCase&, const std::vector<float>&)>;

// Whether the weights of all ranks are bitwise those of the reference after each round.
void ExpectEqualsReference(const GraphCase& one, const ReferenceMaker& make);
// That, for 1, 2, 3, 4 and 8 ranks on each of these graphs, and with every third round global.
void ExpectEqualsReferenceOnGraphs(const GraphCase& one, const std::vector<std::string>& graphs,
                                   const ReferenceMaker& make);
// That, for 1,000 seeds with delays and stalls, on 1 to 4 ranks, on one of the graphs after
// another.
void ExpectEqualsReferenceUnderDelays(const GraphCase& one, const std::vector<std::string>& graphs,
                                      const ReferenceMaker& make);

// What all ranks hold after the rounds of a case.
std::vector<Values> ResultsOf(const GraphCase& one);

// Sent by all ranks together in the first round, and how many edges it has, and what buckets there
// are. Units: bytes.
struct SentInRound {
  uint64_t bytes = 0;
  uint64_t edges = 0;
  uint64_t bucket_bytes = 0;
  uint64_t bucket_count = 0;
};
SentInRound SentInFirstRound(const GraphCase& one);

// What making pipelines on so many ranks ends with.
absl::Status StatusOn(const GraphCase& one);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_TEST_GRAPH_WORLD_H_
