// What the algorithms have in common that average weights over a graph after an optimizer's step.
#ifndef PELTON_ALGORITHMS_STAGE_GRAPH_ALGORITHM_H_
#define PELTON_ALGORITHMS_STAGE_GRAPH_ALGORITHM_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "algorithms/algorithm.h"
#include "algorithms/stage/graph_options.h"
#include "algorithms/stage/neighbor_mean.h"

namespace pelton {

// Threads: as Algorithm. Owns: its options.
class GraphAlgorithm : public Algorithm {
 public:
  // The graph's options. Refuses those of choco_sgd's codec, with the reason.
  void BindOptions(OptionTable& table) override;
  Schedule schedule() const override { return graph_.schedule(); }
  PlanConstraints Constraints() const override;
  bool Takes(const TensorSpec& tensor) const override;
  bool RanksAgree() const override { return false; }

 protected:
  GraphAlgorithm() = default;
  explicit GraphAlgorithm(GraphOptions graph) : graph_(std::move(graph)) {}

  const GraphOptions& graph() const { return graph_; }
  // For a mean over the graph as it is. Errors: those of GraphOptions::Balanced.
  absl::StatusOr<NeighborMean::Over> OverBalanced(const Tiers& tiers) const;
  // For shares over its edges. Errors: those of GraphOptions::EqualShares.
  absl::StatusOr<NeighborMean::Over> OverEqualShares(const Tiers& tiers) const;

 private:
  GraphOptions graph_;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_GRAPH_ALGORITHM_H_
