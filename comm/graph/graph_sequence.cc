#include "comm/graph/graph_sequence.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace pelton {

OnePeerOf::OnePeerOf(Graph graph)
    : graph_(std::move(graph)), turns_(static_cast<size_t>(graph_.size().value())) {
  const int32_t n = graph_.size().value();
  for (const Graph::Edge& edge : graph_.edges()) {
    turns_[static_cast<size_t>(edge.source)].push_back(edge.destination);
  }
  for (int32_t rank = 0; rank < n; ++rank) {
    std::vector<int32_t>& mine = turns_[static_cast<size_t>(rank)];
    std::sort(mine.begin(), mine.end(),
              [rank, n](int32_t a, int32_t b) { return (a - rank + n) % n < (b - rank + n) % n; });
    if (!mine.empty()) period_ = std::lcm(period_, mine.size());
  }
}

Graph OnePeerOf::At(uint64_t step) const {
  const auto n = static_cast<size_t>(graph_.size().value());
  std::vector<std::vector<int32_t>> sources(n);
  for (size_t rank = 0; rank < n; ++rank) {
    const std::vector<int32_t>& mine = turns_[rank];
    if (mine.empty()) continue;
    sources[static_cast<size_t>(mine[step % mine.size()])].push_back(static_cast<int32_t>(rank));
  }
  std::vector<double> own(n);
  std::vector<Graph::Edge> edges;
  for (size_t rank = 0; rank < n; ++rank) {
    own[rank] = 1.0 / static_cast<double>(sources[rank].size() + 1);
    for (const int32_t source : sources[rank]) {
      edges.push_back({source, static_cast<int32_t>(rank), own[rank]});
    }
  }
  return GraphOf(std::move(own), std::move(edges));
}

absl::StatusOr<std::unique_ptr<GraphSequence>> MakeGraphs(const std::string& name, WorldSize size,
                                                          const Options& options) {
  ASSIGN_OR_RETURN(const GraphRegistry::Entry entry, GraphRegistry::Get().Find(name));
  std::unique_ptr<GraphBuilder> builder = entry.factory();
  OptionTable table;
  builder->BindOptions(table);
  RETURN_IF_ERROR(Annotate(table.Parse(options), absl::StrCat("graph ", name)));
  if (size.value() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("graph ", name, ": size is ", size.value(), ", must be 1 or more"));
  }
  absl::StatusOr<std::unique_ptr<GraphSequence>> graphs = builder->Build(size);
  if (graphs.ok()) return graphs;
  return Annotate(graphs.status(), absl::StrCat("graph ", name, " of ", size.value(), " ranks"));
}

Graph GraphOf(std::vector<double> own, std::vector<Graph::Edge> edges) {
  absl::StatusOr<Graph> graph = Graph::Create(std::move(own), std::move(edges));
  PELTON_CHECK_OK(graph.status());
  return *std::move(graph);
}

Graph CirculantGraph(absl::Span<const double> weights) {
  const auto n = static_cast<int32_t>(weights.size());
  std::vector<int32_t> distances;
  for (int32_t distance = 1; distance < n; ++distance) {
    if (weights[static_cast<size_t>(distance)] != 0) distances.push_back(distance);
  }
  std::vector<Graph::Edge> edges;
  for (int32_t rank = 0; rank < n; ++rank) {
    for (const int32_t distance : distances) {
      edges.push_back({rank, (rank + distance) % n, weights[static_cast<size_t>(distance)]});
    }
  }
  return GraphOf(std::vector<double>(weights.size(), weights[0]), std::move(edges));
}

Graph EqualCirculantGraph(WorldSize size, absl::Span<const int32_t> distances) {
  std::vector<double> weights(static_cast<size_t>(size.value()));
  const double weight = 1.0 / static_cast<double>(distances.size() + 1);
  weights[0] = weight;
  for (const int32_t distance : distances) weights[static_cast<size_t>(distance)] = weight;
  return CirculantGraph(weights);
}

}  // namespace pelton
