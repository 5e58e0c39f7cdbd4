// Stochastic gradient push: decentralized SGD over graphs that are directed, change, and need not
// keep the mean over the ranks, such as a star in which everyone gives equal shares.
//
// State and formulas: algorithms/stage/push_sum.h. The model's weights are z = s / w, at which
// gradients are taken; what the optimizer has changed in them is added to the numerator s. Each
// rank gives 1 / (1 + its destinations) of s and of w to itself and to each destination; what
// weights the graph has makes no difference. All ranks are at the same round.
//
// Another number of ranks goes on with s = the weights, which are all ranks' alike then, and w = 1.
//
// Steps: a send for each destination and a receive for each source per bucket; in a global round an
// allreduce.
// Bytes: for a bucket of B bytes B + 4 to each destination (float64: B + 8; 16-bit tensors, whose
// numerators are float32: 2 B + 4); in a global round those of an allreduce of as much.
// Result: ranks differ.
// Source: Assran et al., Stochastic Gradient Push for Distributed Deep Learning, arXiv 1811.10792,
// algorithm 1.
#include "algorithms/stage/push_sum.h"

#include <memory>
#include <utility>

#include "algorithms/algorithm.h"
#include "algorithms/stage/graph_algorithm.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Threads: as Algorithm. Owns: its options.
class PushSum final : public GraphAlgorithm {
 public:
  PushSum() : GraphAlgorithm(GraphOptions("one_peer_exponential")) {}
  std::string BytesSent() const override {
    return "B and one element to each destination, 16-bit tensors as float32; in global rounds "
           "those of an allreduce of as much";
  }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    ASSIGN_OR_RETURN(NeighborMean::Over over, OverEqualShares(tiers));
    ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage,
                     MakePushSumStage(*tiers.all, std::move(over), layout));
    PipelineSpec spec;
    spec.allows_standalone = false;
    spec.stages.push_back(std::move(stage));
    return spec;
  }
};

REGISTER_ALGORITHM(push_sum,
                   "weights averaged over directed and changing graphs, by shares of a sum",
                   PushSum);

}  // namespace
}  // namespace pelton
