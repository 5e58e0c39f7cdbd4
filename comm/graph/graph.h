// Who sends to whom in a round of neighbour averaging, and with which weights; and a graph as text,
// so that it can be the value of an option.
#ifndef PELTON_COMM_GRAPH_GRAPH_H_
#define PELTON_COMM_GRAPH_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/pipeline/weight_table.h"
#include "core/registry/option_table.h"

namespace pelton {

// Directed and weighted, over the ranks 0 to n - 1. The weight W[i][j] of the edge from i to j is
// what j multiplies i's tensor by; W[j][j] is j's own. An edge may have the weight 0: it is there.
// Threads: a value, immutable. Owns: its edges.
class Graph {
 public:
  struct Edge {
    int32_t source;
    int32_t destination;
    double weight;

    friend bool operator==(const Edge&, const Edge&) = default;
  };

  // `own`: a weight for each rank. Errors: InvalidArgument: no rank, an edge from a rank to itself,
  // one given twice, one to a rank that does not exist, a weight that is not finite; each named.
  static absl::StatusOr<Graph> Create(std::vector<double> own, std::vector<Edge> edges);

  WorldSize size() const { return WorldSize(static_cast<int32_t>(own_.size())); }
  absl::Span<const double> own() const { return own_; }
  // By source, then by destination.
  absl::Span<const Edge> edges() const { return edges_; }
  Neighborhood Of(Rank rank) const;

  // Whether each rank takes a mean: its own weight and its sources' add up to 1, up to rounding.
  bool TakesMeans() const;
  // Whether what each rank gives adds up to 1, up to rounding, so that the mean over all ranks
  // stays what it is.
  bool KeepsMean() const;
  // Whether W[i][j] = W[j][i] for all i and j, exactly.
  bool IsSymmetric() const;

  friend bool operator==(const Graph&, const Graph&) = default;

 private:
  Graph(std::vector<double> own, std::vector<Edge> edges)
      : own_(std::move(own)), edges_(std::move(edges)) {}

  std::vector<double> own_;
  std::vector<Edge> edges_;
};

// Of the registered graph that is made of its option edges.
inline constexpr absl::string_view kGivenGraph = "given";

// "0>0:0.5 0>1:0.5 1>0:0.5 1>1:0.5": by spaces, each edge as SOURCE>DESTINATION:WEIGHT, a rank's
// own weight as one from the rank to itself; what is not there is 0. The ranks are those from 0 to
// the largest number. Where no edge has a weight, every rank takes the plain mean of itself and its
// sources. Errors: InvalidArgument: a word is no such edge, weights are given to some edges alone,
// an edge is given twice; those of Graph::Create; each names the edge.
absl::StatusOr<Graph> ReadGraph(absl::string_view text);
// What ReadGraph makes the same graph of, bit by bit.
std::string WriteGraph(const Graph& graph);

// The options by which an algorithm over graphs takes `graph` (InvalidArgument on another number of
// ranks): {"graph", "given"} and {"graph.edges", ...}. `option`: the name of the algorithm's
// option, which is base for slowmo.
Options GivenGraph(const Graph& graph, const std::string& option = "graph");

}  // namespace pelton

#endif  // PELTON_COMM_GRAPH_GRAPH_H_
