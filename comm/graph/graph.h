// Who sends to whom in a round of neighbour averaging, and with which weights.
#ifndef PELTON_COMM_GRAPH_GRAPH_H_
#define PELTON_COMM_GRAPH_GRAPH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/pipeline/weight_table.h"

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

}  // namespace pelton

#endif  // PELTON_COMM_GRAPH_GRAPH_H_
