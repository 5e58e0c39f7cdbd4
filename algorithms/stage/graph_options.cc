#include "algorithms/stage/graph_options.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Steps that are looked at, of a sequence that never repeats or hardly ever.
constexpr uint64_t kLookedAt = 64;

uint64_t StepsOf(const GraphSequence& graphs) {
  return graphs.period() == 0 ? kLookedAt : std::min(graphs.period(), kLookedAt);
}

// Threads: any. Owns: the graphs whose edges it takes.
class EqualSharesOf final : public GraphSequence {
 public:
  explicit EqualSharesOf(std::unique_ptr<GraphSequence> graphs) : graphs_(std::move(graphs)) {}
  WorldSize size() const override { return graphs_->size(); }
  uint64_t period() const override { return graphs_->period(); }
  Graph At(uint64_t step) const override {
    const Graph graph = graphs_->At(step);
    std::vector<double> own(static_cast<size_t>(size().value()), 1);  // shares, then one share
    std::vector<Graph::Edge> edges(graph.edges().begin(), graph.edges().end());
    for (const Graph::Edge& edge : edges) own[static_cast<size_t>(edge.source)] += 1;
    for (double& share : own) share = 1 / share;
    for (Graph::Edge& edge : edges) edge.weight = own[static_cast<size_t>(edge.source)];
    return GraphOf(std::move(own), std::move(edges));
  }

 private:
  const std::unique_ptr<GraphSequence> graphs_;
};

// Steps from rank 0 to each rank along the edges, or against them; -1: there is no way.
std::vector<int64_t> StepsFromRank0(const Graph& graph, bool along) {
  std::vector<std::vector<int32_t>> next(static_cast<size_t>(graph.size().value()));
  for (const Graph::Edge& edge : graph.edges()) {
    if (edge.weight == 0) continue;
    const int32_t from = along ? edge.source : edge.destination;
    next[static_cast<size_t>(from)].push_back(along ? edge.destination : edge.source);
  }
  std::vector<int64_t> steps(next.size(), -1);
  std::vector<int32_t> reached = {0};
  steps[0] = 0;
  for (size_t i = 0; i < reached.size(); ++i) {
    const auto rank = static_cast<size_t>(reached[i]);
    for (const int32_t other : next[rank]) {
      if (steps[static_cast<size_t>(other)] >= 0) continue;
      steps[static_cast<size_t>(other)] = steps[rank] + 1;
      reached.push_back(other);
    }
  }
  return steps;
}

// Why not all ranks come to one mean over a graph that is the same in every step: "" where they do.
std::string WhyNoConsensus(const Graph& graph) {
  const std::vector<int64_t> from = StepsFromRank0(graph, /*along=*/true);
  const std::vector<int64_t> to = StepsFromRank0(graph, /*along=*/false);
  for (size_t rank = 0; rank < from.size(); ++rank) {
    if (from[rank] < 0) return absl::StrCat("has no way from rank 0 to rank ", rank);
    if (to[rank] < 0) return absl::StrCat("has no way from rank ", rank, " to rank 0");
  }
  return "";
}

// Whether the lengths of all ways from a rank back to itself have a common divisor, so that ranks
// take turns for ever. Requires: WhyNoConsensus is "".
bool TakesTurnsForEver(const Graph& graph) {
  if (graph.size().value() == 1) return false;
  const std::vector<int64_t> from = StepsFromRank0(graph, /*along=*/true);
  int64_t divisor = 0;
  for (const double own : graph.own()) {
    if (own != 0) return false;
  }
  for (const Graph::Edge& edge : graph.edges()) {
    if (edge.weight == 0) continue;
    divisor = std::gcd(divisor, from[static_cast<size_t>(edge.source)] + 1 -
                                    from[static_cast<size_t>(edge.destination)]);
  }
  return divisor != 1;
}

// The first rank of which it is not so, and its sum: "what rank 2 gives adds up to 0.9".
std::string WhatDoesNotAddUp(const Graph& graph) {
  const std::vector<double> own(graph.own().begin(), graph.own().end());
  std::vector<double> given = own;
  std::vector<double> taken = own;
  for (const Graph::Edge& edge : graph.edges()) {
    given[static_cast<size_t>(edge.source)] += edge.weight;
    taken[static_cast<size_t>(edge.destination)] += edge.weight;
  }
  constexpr double kRounding = 1e-12;  // as Graph's
  for (size_t rank = 0; rank < own.size(); ++rank) {
    if (std::abs(given[rank] - 1) >= kRounding) {
      return absl::StrCat("what rank ", rank, " gives adds up to ", given[rank]);
    }
    if (std::abs(taken[rank] - 1) >= kRounding) {
      return absl::StrCat("what rank ", rank, " takes adds up to ", taken[rank]);
    }
  }
  return "all adds up to 1";
}

double WeightIn(const Graph& graph, int32_t source, int32_t destination) {
  for (const Graph::Edge& edge : graph.edges()) {
    if (edge.source == source && edge.destination == destination) return edge.weight;
  }
  return 0;
}

// "the edge from rank 0 to rank 1 has the weight 0.5, and the one back 0.25".
std::string FirstUnlikeItsBack(const Graph& graph) {
  for (const Graph::Edge& edge : graph.edges()) {
    const double back = WeightIn(graph, edge.destination, edge.source);
    if (back == edge.weight) continue;
    return absl::StrCat("the edge from rank ", edge.source, " to rank ", edge.destination,
                        " has the weight ", edge.weight, ", and the one back ", back);
  }
  return WhatDoesNotAddUp(graph);
}

}  // namespace

std::vector<std::string> GraphNames(std::vector<std::string> others) {
  for (const GraphRegistry::Entry& entry : GraphRegistry::Get().List()) {
    others.push_back(entry.name);
  }
  return others;
}

void GraphOptions::BindGraph(OptionTable& table) {
  table.Choice("graph", &name_, GraphNames(), "whose edges join neighbours");
  table.Nested(
      "graph.", &options_,
      {"graph.<option>", "the graph's", "those of the graph's option", "an option of the graph"});
}

void GraphOptions::Bind(OptionTable& table) {
  BindGraph(table);
  table.Count("interval", &interval_, 1, "steps from one round to the next");
  table.Count("global_interval", &global_interval_, 0,
              "rounds from one exact mean of all ranks, in place of the neighbours', to the next; "
              "0: there is none");
}

Schedule GraphOptions::schedule() const {
  return {.source = Source::kWeights,
          .trigger = TriggerKind::kAfterStep,
          .first_step = interval_,
          .interval = interval_};
}

absl::StatusOr<std::unique_ptr<GraphSequence>> GraphOptions::Make(WorldSize size) const {
  absl::StatusOr<std::unique_ptr<GraphSequence>> graphs = MakeGraphs(name_, size, options_);
  if (!graphs.ok()) return Annotate(graphs.status(), absl::StrCat("option ", option_));
  return graphs;
}

absl::Status GraphOptions::CheckGiven(const Graph& graph) const {
  if (name_ != kGivenGraph) return absl::OkStatus();
  const std::vector<double> own(graph.own().begin(), graph.own().end());
  const auto below = std::find_if(own.begin(), own.end(), [](double weight) { return weight < 0; });
  if (below != own.end()) {
    return Refusal(graph.size(), absl::StrCat("has the own weight ", *below, " at rank ",
                                              below - own.begin(), "; give weights of at least 0"));
  }
  for (const Graph::Edge& edge : graph.edges()) {
    if (edge.weight >= 0) continue;
    return Refusal(graph.size(),
                   absl::StrCat("has the weight ", edge.weight, " from rank ", edge.source,
                                " to rank ", edge.destination, "; give weights of at least 0"));
  }
  const std::string why = global_interval_ > 0 ? "" : WhyNoConsensus(graph);
  if (why.empty()) return absl::OkStatus();
  return Refusal(graph.size(),
                 absl::StrCat(why, ", so that they never agree; add edges of a weight above 0"));
}

absl::Status GraphOptions::Refusal(WorldSize size, const std::string& reason) const {
  return absl::InvalidArgumentError(absl::StrCat("option ", option_, " is '", name_, "', which on ",
                                                 size.value(), " ranks ", reason));
}

absl::StatusOr<std::unique_ptr<GraphSequence>> GraphOptions::Balanced(WorldSize size) const {
  ASSIGN_OR_RETURN(std::unique_ptr<GraphSequence> graphs, Make(size));
  RETURN_IF_ERROR(CheckGiven(graphs->At(0)));
  for (uint64_t step = 0; step < StepsOf(*graphs); ++step) {
    const Graph graph = graphs->At(step);
    if (graph.TakesMeans() && graph.KeepsMean()) continue;
    return Refusal(
        size, absl::StrCat("does not keep the mean over all ranks in step ", step, ": ",
                           WhatDoesNotAddUp(graph), "; the algorithm push_sum takes any graph"));
  }
  RETURN_IF_ERROR(CheckMixes(graphs->At(0)));
  return graphs;
}

absl::Status GraphOptions::CheckMixes(const Graph& graph) const {
  if (name_ != kGivenGraph || global_interval_ > 0) return absl::OkStatus();
  if (!TakesTurnsForEver(graph)) return absl::OkStatus();
  return Refusal(graph.size(),
                 "lets ranks take turns for ever; give them own weights above 0, so that they "
                 "agree in time");
}

absl::StatusOr<Graph> GraphOptions::StaticSymmetric(WorldSize size) const {
  ASSIGN_OR_RETURN(const std::unique_ptr<GraphSequence> graphs, Make(size));
  Graph graph = graphs->At(0);
  RETURN_IF_ERROR(CheckGiven(graph));
  if (graphs->period() == 1 && graph.IsSymmetric() && graph.TakesMeans()) return graph;
  const std::string what =
      graphs->period() != 1 ? "the same in every step"
      : name_ != kGivenGraph
          ? "symmetric"
          : absl::StrCat("symmetric with rows that add up to 1: ", FirstUnlikeItsBack(graph));
  return Refusal(
      size, absl::StrCat("is not ", what,
                         "; ring, star, mesh_grid, symmetric_exponential and fully_connected are"));
}

absl::StatusOr<std::unique_ptr<GraphSequence>> GraphOptions::EqualShares(WorldSize size) const {
  ASSIGN_OR_RETURN(std::unique_ptr<GraphSequence> graphs, Make(size));
  auto shares = std::make_unique<EqualSharesOf>(std::move(graphs));
  RETURN_IF_ERROR(CheckGiven(shares->At(0)));
  return shares;
}

EdgesInAnyStep EdgesInAnyStepOf(Rank rank, const GraphSequence& graphs) {
  std::set<Rank> sources;
  std::set<Rank> destinations;
  for (int32_t other = 0; graphs.period() == 0 && other < graphs.size().value(); ++other) {
    if (Rank(other) != rank) sources.insert(Rank(other));
  }
  if (graphs.period() == 0) destinations = sources;
  for (uint64_t step = 0; step < graphs.period(); ++step) {
    const Neighborhood at = graphs.At(step).Of(rank);
    for (const Neighbor& source : at.sources) sources.insert(source.rank);
    for (const Neighbor& destination : at.destinations) destinations.insert(destination.rank);
  }
  return {{sources.begin(), sources.end()}, {destinations.begin(), destinations.end()}};
}

}  // namespace pelton
