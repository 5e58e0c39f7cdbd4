// What the algorithms have in common that average weights over a graph: after an optimizer's step,
// or beside training by windows and in rounds of each rank's own.
#ifndef PELTON_ALGORITHMS_STAGE_GRAPH_ALGORITHM_H_
#define PELTON_ALGORITHMS_STAGE_GRAPH_ALGORITHM_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "algorithms/algorithm.h"
#include "algorithms/stage/graph_options.h"
#include "algorithms/stage/neighbor_mean.h"
#include "comm/graph/graph_sequence.h"

namespace pelton {

// An average over a graph after an optimizer's step.
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

// An average over a graph beside training, by windows and in rounds of each rank's own.
// Threads: as Algorithm. Owns: its options.
class AloneAlgorithm : public Algorithm {
 public:
  // The pause and the graph. Refuses the options of choco_sgd's codec, with the reason.
  void BindOptions(OptionTable& table) override;
  Schedule schedule() const override;
  PlanConstraints Constraints() const override;
  bool Takes(const TensorSpec& tensor) const override;
  bool UsesWindows() const override { return true; }
  bool RanksAgree() const override { return false; }
  bool Repeats() const override { return false; }
  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) final;

 protected:
  // `why_no_codec`: what a codec's rounding would undo; outlives this.
  AloneAlgorithm(GraphOptions graph, absl::string_view why_no_codec)
      : graph_(std::move(graph)), why_no_codec_(why_no_codec) {}

  virtual absl::StatusOr<std::unique_ptr<Stage>> StageFor(
      const BucketLayout& layout, const Tiers& tiers,
      std::unique_ptr<GraphSequence> graphs) const = 0;

 private:
  uint64_t pause_ms_ = 500;
  GraphOptions graph_;
  const absl::string_view why_no_codec_;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_GRAPH_ALGORITHM_H_
