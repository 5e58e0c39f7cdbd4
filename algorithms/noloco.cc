// NoLoCo: DiLoCo without an exchange between all ranks. Every rank takes `interval` steps of its
// inner optimizer by itself; then it meets one other, and an outer step with momentum takes its own
// anchor towards where the two are on average. Pairs change, so that all come together in time.
//
// State per bucket: the anchor a of this rank, which begins as the initial model, and the velocity
// v, which begins at zero. With x the weights after `interval` steps, W the round's pairs
// (comm/graph/random_pairs.cc, by a seed that all ranks know; option graph takes any other that
// keeps the mean over the ranks), m the momentum and r the outer learning rate:
//   g = a - W x;  v = m v + g;  a = a - r v;  x = a
// which is m = mu m + eta (W x - a), a += m of the paper with v = -m / eta. Its gamma, with which
// anchors come together, is its beta here, and so one exchange does for both. A rank that sits a
// round out does the same with its own weights alone. The step is algorithms/stage/outer_step.h's.
//
// Another number of ranks goes on with a = the weights, which are all ranks' alike then, and with
// the mean of v over the ranks.
//
// Steps: a send and a receive per bucket; in a global round an allreduce. Bytes: for a bucket of B
// bytes B, each `interval` steps; in a global round those of an allreduce.
// Result: ranks differ.
// Source: Kolehmainen et al., NoLoCo: No-all-reduce Low Communication Training Method for Large
// Models, arXiv 2506.10911.
#include <memory>
#include <utility>

#include "algorithms/algorithm.h"
#include "algorithms/stage/graph_algorithm.h"
#include "algorithms/stage/neighbor_mean.h"
#include "algorithms/stage/outer_step.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Threads: as Algorithm. Owns: its options.
class NoLoCo final : public GraphAlgorithm {
 public:
  NoLoCo() : GraphAlgorithm(GraphOptions("random_pairs", 50)) {}
  void BindOptions(OptionTable& table) override {
    GraphAlgorithm::BindOptions(table);
    table.Number("outer_learning_rate", &outer_.learning_rate, kAnyRate, "of the outer step");
    table.Number("outer_momentum", &outer_.momentum, kFraction, "of the outer step");
  }
  std::string BytesSent() const override {
    return "B to each destination, which of pairs is one; in global rounds those of an allreduce "
           "of "
           "B bytes";
  }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    ASSIGN_OR_RETURN(NeighborMean::Over over, OverBalanced(tiers));
    PipelineSpec spec;
    spec.stages.push_back(MakeNeighborMeanStage(*tiers.all, std::move(over), layout));
    AddOwnOuterStep(outer_, layout, spec);
    return spec;
  }

 private:
  OuterStepOptions outer_{.learning_rate = 0.7, .momentum = 0.5, .nesterov = false};
};

REGISTER_ALGORITHM(noloco, "an outer step towards the mean with one other rank, each few steps",
                   NoLoCo);

}  // namespace
}  // namespace pelton
