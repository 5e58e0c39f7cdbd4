#include "algorithms/stage/graph_algorithm.h"

#include <string>

#include "comm/reduction/linear_combination.h"
#include "core/base/status.h"

namespace pelton {

void GraphAlgorithm::BindOptions(OptionTable& table) {
  graph_.Bind(table);
  table.Refuse("codec",
               "what ranks give their neighbours has to add up to what they had, which a codec's "
               "rounding would undo; choco_sgd averages over a graph with a codec");
  table.Refuse("hierarchical", std::string(GraphOptions::kWhyNotHierarchical));
}

PlanConstraints GraphAlgorithm::Constraints() const {
  PlanConstraints constraints;
  constraints.allows_standalone = false;
  return constraints;
}

bool GraphAlgorithm::Takes(const TensorSpec& tensor) const { return IsCombinable(tensor.dtype); }

absl::StatusOr<NeighborMean::Over> GraphAlgorithm::OverBalanced(const Tiers& tiers) const {
  ASSIGN_OR_RETURN(std::unique_ptr<GraphSequence> graphs, graph_.Balanced(tiers.all->world_size()));
  return NeighborMean::Over{std::move(graphs), graph_.global_interval()};
}

absl::StatusOr<NeighborMean::Over> GraphAlgorithm::OverEqualShares(const Tiers& tiers) const {
  ASSIGN_OR_RETURN(std::unique_ptr<GraphSequence> graphs,
                   graph_.EqualShares(tiers.all->world_size()));
  return NeighborMean::Over{std::move(graphs), graph_.global_interval()};
}

}  // namespace pelton
