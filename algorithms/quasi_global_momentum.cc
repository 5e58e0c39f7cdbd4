// Quasi-global momentum: decentralized SGD whose momentum is of how far a rank has come together
// with its neighbours, and not of its own gradients, which pull apart ranks whose data differ.
//
// State per bucket: x, the weights after the last round, which begin as the initial model, and the
// momentum h, which begins at zero. With x' the weights after an optimizer's step, W the weights of
// the round's graph and b the momentum's factor:
//   x_new = W (x' - b h);  h = b h + (1 - b) (x - x_new);  x = x_new
// The optimizer is plain SGD: with a rate of e its x' is x - e g, so that this is the paper's
// m = b mh + g, x_new = W (x - e m), mh = b mh + (1 - b) (x - x_new) / e with h = e mh. Where the
// rate changes, h keeps the size of the steps that it was made of. The optimizer's own momentum, if
// it has one, comes on top.
//
// h is float32 for tensors of 16 bits. Another number of ranks goes on with the mean of h over the
// ranks.
//
// Steps: a send for each destination and a receive for each source per bucket; in a global round an
// allreduce.
// Bytes: for a bucket of B bytes B to each destination; in a global round those of an allreduce.
// Result: ranks differ.
// Source: Lin et al., Quasi-Global Momentum: Accelerating Decentralized Deep Learning on
// Heterogeneous Data, arXiv 2102.04761, algorithm 1; its mu is b here, as its beta is.
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "algorithms/algorithm.h"
#include "algorithms/codec/error_feedback.h"
#include "algorithms/stage/graph_algorithm.h"
#include "algorithms/stage/neighbor_mean.h"
#include "comm/reduction/linear_combination.h"
#include "core/base/status.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// What the first stage of a bucket keeps and the last one changes.
// Threads: its stages'. Owns: nothing.
struct Kept {
  StateBuffer momentum;
  StateBuffer weights;
};

// The bucket, x', becomes x' - b h.
std::unique_ptr<Stage> MakeApplyMomentumStage(double factor, const BucketLayout& layout,
                                              const std::shared_ptr<Kept>& kept) {
  const StateBuffer momentum = {
      .name = "momentum", .dtype = FeedbackDType(layout.dtype), .count = layout.flat_count};
  const StateBuffer weights = {.name = "weights",
                               .dtype = layout.dtype,
                               .scope = StateScope::kReplica,
                               .begins_as_weights = true,
                               .count = layout.flat_count};
  const auto apply = [factor, kept](const BucketRun& run, absl::Span<const StateBuffer> buffers) {
    kept->momentum = buffers[0];
    kept->weights = buffers[1];
    const DType dtype = run.layout().dtype;
    const Term terms[] = {{run.flat(), 1, dtype},
                          {kept->momentum.data, -factor, kept->momentum.dtype}};
    LinearCombination(terms, {run.flat(), dtype}, run.layout().flat_count);
  };
  return MakeLocalStage("quasi-global momentum", apply, {momentum, weights});
}

// The momentum takes in how far the weights have come; the bucket stays as it is.
std::unique_ptr<Stage> MakeUpdateMomentumStage(double factor, const std::shared_ptr<Kept>& kept) {
  return MakeLocalStage("momentum update", [factor, kept](const BucketRun& run, auto) {
    const uint64_t count = run.layout().flat_count;
    const DType dtype = run.layout().dtype;
    const StateBuffer& momentum = kept->momentum;
    std::byte* const weights = kept->weights.data;
    // The difference first: both are large where it is small.
    const Term come[] = {{weights, 1, dtype}, {run.flat(), -1, dtype}};
    LinearCombination(come, {weights, dtype}, count);
    const Term terms[] = {{momentum.data, factor, momentum.dtype}, {weights, 1 - factor, dtype}};
    LinearCombination(terms, {momentum.data, momentum.dtype}, count);
    std::memcpy(weights, run.flat(), run.flat_size_bytes());
  });
}

// Threads: as Algorithm. Owns: its options.
class QuasiGlobalMomentum final : public GraphAlgorithm {
 public:
  void BindOptions(OptionTable& table) override {
    GraphAlgorithm::BindOptions(table);
    table.Number("momentum", &momentum_, kFraction,
                 "how much of itself it keeps; the optimizer is to have none");
  }
  std::string BytesSent() const override {
    return "B to each destination; in global rounds those of an allreduce of B bytes";
  }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    ASSIGN_OR_RETURN(NeighborMean::Over over, OverBalanced(tiers));
    const auto kept = std::make_shared<Kept>();
    PipelineSpec spec;
    spec.stages.push_back(MakeApplyMomentumStage(momentum_, layout, kept));
    spec.stages.push_back(MakeNeighborMeanStage(*tiers.all, std::move(over), layout));
    spec.stages.push_back(MakeUpdateMomentumStage(momentum_, kept));
    return spec;
  }

 private:
  double momentum_ = 0.9;
};

REGISTER_ALGORITHM(quasi_global_momentum,
                   "neighbours' means of the weights, with momentum of the way they come together",
                   QuasiGlobalMomentum);

}  // namespace
}  // namespace pelton
