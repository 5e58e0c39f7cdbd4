#include "algorithms/stage/graph_options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Steps that are looked at, of a sequence that never repeats or hardly ever.
constexpr uint64_t kLookedAt = 64;

bool IsShort(const GraphSequence& graphs) {
  return graphs.period() > 0 && graphs.period() <= kLookedAt;
}

uint64_t StepsOf(const GraphSequence& graphs) {
  return IsShort(graphs) ? graphs.period() : kLookedAt;
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

}  // namespace

std::vector<std::string> GraphNames(std::vector<std::string> others) {
  for (const GraphRegistry::Entry& entry : GraphRegistry::Get().List()) {
    others.push_back(entry.name);
  }
  return others;
}

void GraphOptions::Bind(OptionTable& table) {
  table.Choice("graph", &name_, GraphNames(), "whose edges join neighbours");
  table.Nested(
      "graph.", &options_,
      {"graph.<option>", "the graph's", "those of the graph's option", "an option of the graph"});
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
  return MakeGraphs(name_, size, options_);
}

absl::Status GraphOptions::Refusal(WorldSize size, const std::string& reason) const {
  return absl::InvalidArgumentError(absl::StrCat("option ", option_, " is '", name_, "', which on ",
                                                 size.value(), " ranks ", reason));
}

absl::StatusOr<std::unique_ptr<GraphSequence>> GraphOptions::Balanced(WorldSize size) const {
  ASSIGN_OR_RETURN(std::unique_ptr<GraphSequence> graphs, Make(size));
  for (uint64_t step = 0; step < StepsOf(*graphs); ++step) {
    const Graph graph = graphs->At(step);
    if (graph.TakesMeans() && graph.KeepsMean()) continue;
    return Refusal(size, absl::StrCat("does not keep the mean over all ranks in step ", step,
                                      "; the algorithm push_sum takes any graph"));
  }
  return graphs;
}

absl::StatusOr<Graph> GraphOptions::StaticSymmetric(WorldSize size) const {
  ASSIGN_OR_RETURN(const std::unique_ptr<GraphSequence> graphs, Make(size));
  Graph graph = graphs->At(0);
  if (graphs->period() == 1 && graph.IsSymmetric() && graph.TakesMeans()) return graph;
  return Refusal(
      size, absl::StrCat("is not ", graphs->period() == 1 ? "symmetric" : "the same in every step",
                         "; ring, star, mesh_grid, symmetric_exponential and fully_connected are"));
}

absl::StatusOr<std::unique_ptr<GraphSequence>> GraphOptions::EqualShares(WorldSize size) const {
  ASSIGN_OR_RETURN(std::unique_ptr<GraphSequence> graphs, Make(size));
  return std::make_unique<EqualSharesOf>(std::move(graphs));
}

size_t MostSources(const GraphSequence& graphs) {
  size_t most = 0;
  for (uint64_t step = 0; step < StepsOf(graphs); ++step) {
    const Graph graph = graphs.At(step);
    std::vector<size_t> counts(static_cast<size_t>(graphs.size().value()));
    for (const Graph::Edge& edge : graph.edges()) {
      most = std::max(most, ++counts[static_cast<size_t>(edge.destination)]);
    }
  }
  return IsShort(graphs) ? most : static_cast<size_t>(graphs.size().value()) - 1;
}

}  // namespace pelton
