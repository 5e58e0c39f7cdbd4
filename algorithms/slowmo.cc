// SlowMo: momentum on top of any way of training side by side. Every `interval` steps the ranks
// come to the exact mean of their weights; a slow momentum, of how far that mean is from where it
// was `interval` steps ago, then moves all of them, and they go on from there.
//
// State per bucket: a, the weights after the last slow step, which begin as the initial model, and
// v, the slow momentum, which begins at zero. With x_i rank i's weights, r the slow learning rate
// and m the slow momentum (algorithms/stage/outer_step.h, with plain momentum):
//   g = (sum over i of (a - x_i)) / n;  v = m v + g;  a = a - r v;  x_i = a
// In the steps between, with base=none, ranks train by themselves (the paper's Local SGD as the
// base); with the name of a graph, all of which keep the mean over the ranks, they take after each
// step the means of its edges (D-PSGD as the base):
//   x_i = W_ii x_i + the sum over i's sources j, ascending, of W_ji x_j
// In the step of a slow step that mean is left out: the exact one is the same with it and without.
// With a graph, slow_learning_rate=1 and slow_momentum=0 this is Gossip-PGA (arXiv 2105.09080).
//
// The paper divides what v adds up by the fast learning rate and multiplies the step by it; where
// that rate stands still both cancel. Where a schedule lowers it, v here keeps the size of the
// steps that it was made of, as momentum in DiLoCo does.
//
// Steps: each `interval` steps an allreduce per bucket, with a codec a compressed one; with a graph
// a send for each destination and a receive for each source per bucket in the others.
// Bytes: for a bucket of B bytes those of the communicator's allreduce of B bytes, with a codec
// those of algorithms/stage/compressed_algorithm.h, each `interval` steps; with a graph B to each
// destination in the others.
// Result: a is bitwise equal on all ranks (SUM-1a); between slow steps ranks differ.
// Source: Wang et al., SlowMo: Improving Communication-Efficient Distributed SGD with Slow
// Momentum, arXiv 1910.00643, algorithm 1; its alpha is the slow learning rate, its beta the slow
// momentum, its tau the interval, and its u is v over the fast rate.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/stage/compressed_algorithm.h"
#include "algorithms/stage/graph_options.h"
#include "algorithms/stage/neighbor_mean.h"
#include "algorithms/stage/outer_step.h"
#include "comm/graph/graph_sequence.h"
#include "comm/reduction/combinable.h"
#include "core/base/status.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

constexpr char kNone[] = "none";

// Threads: as Algorithm. Owns: its options.
class SlowMo final : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("interval", &interval_, 1, "steps from one exact mean and slow step to the next");
    table.Number("slow_learning_rate", &outer_.learning_rate, kAnyRate, "of the slow step");
    table.Number("slow_momentum", &outer_.momentum, kFraction, "how much of itself it keeps");
    table.Choice("base", &base_, GraphNames({kNone}),
                 "in the other steps, none: ranks train by themselves; else they take the means of "
                 "that graph's edges");
    table.Nested("base.", &base_options_,
                 {"base.<option>", "the graph's", "those of the graph's option",
                  "an option of the graph that base names"});
    table.Bool("hierarchical", &hierarchical_,
               "with a codec, true: only the hosts' leaders exchange the messages of exact means");
    compression_.Bind(table);
  }
  absl::Status CheckOptions() override {
    RETURN_IF_ERROR(compression_.Finish());
    if (!has_graph() && !base_options_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("option base.", base_options_.begin()->first,
                       " is given, but option base is 'none', which has no graph"));
    }
    return absl::OkStatus();
  }
  std::string BytesSent() const override {
    return "each interval those of an allreduce of B bytes, with a codec 2 (n - 1) / n times the "
           "encoded bucket; with a graph B to each destination in the other steps";
  }

  Schedule schedule() const override {
    const uint64_t interval = has_graph() ? 1 : interval_;
    return {.source = Source::kWeights,
            .trigger = TriggerKind::kAfterStep,
            .first_step = interval,
            .interval = interval};
  }
  bool IsHierarchical() const override { return hierarchical_ && compression_.codec() != nullptr; }
  PlanConstraints Constraints() const override { return {.allows_standalone = false}; }
  bool Takes(const TensorSpec& tensor) const override {
    return IsCombinable(tensor.dtype) && compression_.Takes(tensor.dtype);
  }
  bool RanksAgree() const override { return !has_graph(); }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    PipelineSpec spec;
    if (!has_graph()) {
      RETURN_IF_ERROR(AddOuterStep(outer_, compression_, layout, tiers, spec));
      return spec;
    }
    RETURN_IF_ERROR(AddNeighborMean(*tiers.all, layout, spec));
    PipelineSpec slow;
    RETURN_IF_ERROR(AddOuterStep(outer_, compression_, layout, tiers, slow));
    for (std::unique_ptr<Stage>& stage : slow.stages) {
      spec.stages.push_back(
          MakeStageOfRounds(std::move(stage), WhichRounds::kMultiples, interval_));
    }
    return spec;
  }

 private:
  bool has_graph() const { return base_ != kNone; }

  absl::Status AddNeighborMean(Communicator& communicator, const BucketLayout& layout,
                               PipelineSpec& spec) const {
    ASSIGN_OR_RETURN(std::unique_ptr<GraphSequence> graphs,
                     GraphOptions::Named("base", base_, base_options_, interval_)
                         .Balanced(communicator.world_size()));
    spec.stages.push_back(
        MakeStageOfRounds(MakeNeighborMeanStage(communicator, {std::move(graphs)}, layout),
                          WhichRounds::kOthers, interval_));
    return absl::OkStatus();
  }

  uint64_t interval_ = 12;
  OuterStepOptions outer_{.learning_rate = 1, .momentum = 0.7, .nesterov = false};
  std::string base_ = kNone;
  Options base_options_;
  bool hierarchical_ = true;
  CompressionOptions compression_;
};

REGISTER_ALGORITHM(slowmo,
                   "momentum on the exact mean of all ranks' weights each few steps, over local "
                   "training or neighbours' means",
                   SlowMo);

}  // namespace
}  // namespace pelton
