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

// An average over a graph after an optimizer's step, where its subclass says nothing else.
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
  // `why_no_codec`: what a codec's rounding would undo; a literal.
  explicit GraphAlgorithm(GraphOptions graph = GraphOptions(),
                          absl::string_view why_no_codec =
                              "what ranks give their neighbours has to add up to what they had")
      : graph_(std::move(graph)), why_no_codec_(why_no_codec) {}

  GraphOptions& graph() { return graph_; }
  const GraphOptions& graph() const { return graph_; }
  // Those of a codec and of hosts, with the reasons.
  void RefuseOptions(OptionTable& table) const;
  // For a mean over the graph as it is. Errors: those of GraphOptions::Balanced.
  absl::StatusOr<NeighborMean::Over> OverBalanced(const Tiers& tiers) const;
  // For shares over its edges. Errors: those of GraphOptions::EqualShares.
  absl::StatusOr<NeighborMean::Over> OverEqualShares(const Tiers& tiers) const;

 private:
  GraphOptions graph_;
  const absl::string_view why_no_codec_;
};

// An average over a graph beside training, by windows and in rounds of each rank's own.
// Threads: as Algorithm. Owns: its options.
class AloneAlgorithm : public GraphAlgorithm {
 public:
  // The pause and the graph. Refuses the options of choco_sgd's codec, with the reason.
  void BindOptions(OptionTable& table) override;
  Schedule schedule() const override;
  bool UsesWindows() const override { return true; }
  bool Repeats() const override { return false; }
  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) final;

 protected:
  using GraphAlgorithm::GraphAlgorithm;

  virtual absl::StatusOr<std::unique_ptr<Stage>> StageFor(
      const BucketLayout& layout, const Tiers& tiers,
      std::unique_ptr<GraphSequence> graphs) const = 0;

 private:
  uint64_t pause_ms_ = 500;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_GRAPH_ALGORITHM_H_
