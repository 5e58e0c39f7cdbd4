#include "algorithms/stage/graph_algorithm.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "comm/reduction/linear_combination.h"
#include "core/base/status.h"

namespace pelton {

void GraphAlgorithm::BindOptions(OptionTable& table) {
  graph_.Bind(table);
  RefuseOptions(table);
}

void GraphAlgorithm::RefuseOptions(OptionTable& table) const {
  table.Refuse("codec", absl::StrCat(why_no_codec_,
                                     ", which a codec's rounding would undo; "
                                     "choco_sgd averages over a graph with a codec"));
  table.Refuse("hierarchical", std::string(GraphOptions::kWhyNotHierarchical));
}

PlanConstraints GraphAlgorithm::Constraints() const { return {.allows_standalone = false}; }

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

void AloneAlgorithm::BindOptions(OptionTable& table) {
  table.Count("sync_interval_ms", &pause_ms_, 0,
              "from the end of a round to the start of the next; milliseconds");
  graph().BindGraph(table);
  RefuseOptions(table);
}

Schedule AloneAlgorithm::schedule() const {
  return {.source = Source::kWeights,
          .trigger = TriggerKind::kTimer,
          .pause = absl::Milliseconds(pause_ms_),
          .ranks_share_rounds = false,
          .commit = {.kept = 1, .taken = 1}};
}

absl::StatusOr<PipelineSpec> AloneAlgorithm::StagesFor(const BucketLayout& layout,
                                                       const Tiers& tiers) {
  PipelineSpec spec;
  ASSIGN_OR_RETURN(std::unique_ptr<GraphSequence> graphs,
                   graph().EqualShares(tiers.all->world_size()));
  ASSIGN_OR_RETURN(spec.stages.emplace_back(), StageFor(layout, tiers, std::move(graphs)));
  return spec;
}

}  // namespace pelton
