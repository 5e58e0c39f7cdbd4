// Gradient tracking, and push-DIGing: every rank follows the mean of what all ranks' optimizers do,
// over a graph, and so all come to the optimum of the mean of their losses with a constant learning
// rate, on graphs that are directed or change, too.
//
// State per bucket: x, the weights after the last round, which begin as the initial model; u, the
// last step of this rank's optimizer, and y, what it knows of the mean step, which both begin at
// zero. With x' the weights after an optimizer's step and W the weights of the round's graph:
//   u_new = x - x';  y = W (y + u_new - u);  u = u_new;  x = W (x - y)
// The sum over all ranks of y is that of u, up to rounding.
//
// Tracked is the optimizer's step and not the gradient, so that a model has one round a step and
// whatever lies between the two (clipping, a scaler, momentum, a rate that changes) is part of it.
// For SGD of rate e, u is e g and this is the papers' y = W (y + g - g_prev), x = W (x - e y),
// times e; SGD's momentum, being linear, comes to the same optimum. With an optimizer that is not
// linear in the gradients, as Adam, ranks follow the mean of the ranks' own steps, which at the
// optimum of the mean loss need not be 0.
//
// With push=true only the graph's edges count: each rank gives equal shares to itself and to its
// destinations, and weights are divided by a scalar that travels along (push-DIGing;
// algorithms/stage/push_sum.h). That takes graphs which do not keep the mean over the ranks.
//
// u and y are float32 for tensors of 16 bits, and y travels as that.
// Another number of ranks goes on with the means of u and of y over the ranks.
//
// Steps: two sends for each destination and two receives for each source per bucket; in a global
// round two allreduces.
// Bytes: for a bucket of B bytes 2 B to each destination, 3 B for tensors of 16 bits; with
// push=true one element more, and 4 B for tensors of 16 bits. In a global round those of allreduces
// of as much. Result: ranks differ until they have come to the optimum. Source: Nedić et al.,
// Achieving Geometric Convergence for Distributed Optimization over Time-Varying Graphs, arXiv
// 1607.03218, algorithms 1 (DIGing) and 2 (push-DIGing), here in the form that combines after the
// step: Nedić et al., Geometrically Convergent Distributed Optimization with Uncoordinated
// Step-Sizes, arXiv 1609.05877.
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "algorithms/algorithm.h"
#include "algorithms/codec/error_feedback.h"
#include "algorithms/stage/graph_algorithm.h"
#include "algorithms/stage/neighbor_mean.h"
#include "algorithms/stage/push_sum.h"
#include "comm/reduction/linear_combination.h"
#include "comm/scratch.h"
#include "core/base/status.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// The bucket, x', becomes x - y.
// Threads: as Stage. Owns: the message.
class TrackStage final : public Stage {
 public:
  TrackStage(std::unique_ptr<NeighborMean> mean, std::unique_ptr<Scratch> message,
             std::shared_ptr<StateBuffer> last)
      : mean_(std::move(mean)), message_(std::move(message)), last_(std::move(last)) {}
  absl::string_view name() const override { return "tracking"; }

  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    const DType dtype = FeedbackDType(layout.dtype);
    auto state = std::make_unique<FlatState>();
    state->Add({.name = "mean_step", .dtype = dtype, .count = layout.flat_count});
    state->Add({.name = "own_step", .dtype = dtype, .count = layout.flat_count});
    state->Add({.name = "weights",
                .dtype = layout.dtype,
                .scope = StateScope::kReplica,
                .begins_as_weights = true,
                .count = layout.flat_count});
    return state;
  }

  absl::Status Start(BucketRun& run, StageState* state) override {
    const uint64_t count = run.layout().flat_count;
    *last_ = state->buffers()[kWeights];
    if (count == 0) return absl::OkStatus();
    const DType dtype = run.layout().dtype;
    const StateBuffer& mean = state->buffers()[kMeanStep];
    const StateBuffer& own = state->buffers()[kOwnStep];
    const Term step[] = {{last_->data, 1, dtype}, {run.flat(), -1, dtype}};
    LinearCombination(step, {message_->data(), own.dtype}, count);
    const Term tracked[] = {
        {mean.data, 1, mean.dtype}, {message_->data(), 1, own.dtype}, {own.data, -1, own.dtype}};
    LinearCombination(tracked, {mean.data, mean.dtype}, count);
    std::memcpy(own.data, message_->data(), count * SizeOf(own.dtype));
    std::memcpy(message_->data(), mean.data, count * SizeOf(mean.dtype));
    return mean_->Begin(run, message_->data(), message_->At(0));
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) override {
    const uint64_t count = run.layout().flat_count;
    if (count == 0) return true;
    ASSIGN_OR_RETURN(const bool done, mean_->Advance(run));
    if (!done) return false;
    const DType dtype = run.layout().dtype;
    const StateBuffer& mean = state->buffers()[kMeanStep];
    std::memcpy(mean.data, message_->data(), count * SizeOf(mean.dtype));
    const Term moved[] = {{last_->data, 1, dtype}, {mean.data, -1, mean.dtype}};
    LinearCombination(moved, {run.flat(), dtype}, count);
    return true;
  }

 private:
  static constexpr size_t kMeanStep = 0;
  static constexpr size_t kOwnStep = 1;
  static constexpr size_t kWeights = 2;

  const std::unique_ptr<NeighborMean> mean_;
  const std::unique_ptr<Scratch> message_;
  const std::shared_ptr<StateBuffer> last_;  // the weights, shared with the stage that writes them
};

// Threads: as Algorithm. Owns: its options.
class GradientTracking final : public GraphAlgorithm {
 public:
  void BindOptions(OptionTable& table) override {
    GraphAlgorithm::BindOptions(table);
    table.Bool("push", &push_,
               "true: over the edges of any graph, whatever its weights (push-DIGing)");
  }
  std::string BytesSent() const override {
    return "2 B to each destination, 3 B of 16-bit tensors; with push one element more, and 4 B of "
           "16-bit tensors; in global rounds those of allreduces of as much";
  }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    const auto last = std::make_shared<StateBuffer>();
    ASSIGN_OR_RETURN(std::unique_ptr<Stage> track, MakeTrackStage(layout, tiers, last));
    ASSIGN_OR_RETURN(NeighborMean::Over over, MakeOver(tiers));
    ASSIGN_OR_RETURN(std::unique_ptr<Stage> mean,
                     push_ ? MakePushSumStage(*tiers.all, std::move(over), layout)
                           : MakeNeighborMeanStage(*tiers.all, std::move(over), layout));
    PipelineSpec spec;
    spec.stages.push_back(std::move(track));
    spec.stages.push_back(std::move(mean));
    spec.stages.push_back(MakeLocalStage("last weights", [last](const BucketRun& run, auto) {
      std::memcpy(last->data, run.flat(), run.flat_size_bytes());
    }));
    return spec;
  }

 private:
  absl::StatusOr<NeighborMean::Over> MakeOver(const Tiers& tiers) const {
    if (!push_) return OverBalanced(tiers);
    return OverEqualShares(tiers);
  }

  absl::StatusOr<std::unique_ptr<Stage>> MakeTrackStage(const BucketLayout& layout,
                                                        const Tiers& tiers,
                                                        std::shared_ptr<StateBuffer> last) const {
    const NeighborMean::Shape shape = {FeedbackDType(layout.dtype), layout.flat_count};
    ASSIGN_OR_RETURN(
        std::unique_ptr<Scratch> message,
        Scratch::Create(*tiers.all, "mean step", (shape.count + 1) * SizeOf(shape.dtype)));
    ASSIGN_OR_RETURN(NeighborMean::Over over, MakeOver(tiers));
    auto mean =
        std::make_unique<NeighborMean>(*tiers.all, "neighbours' steps", std::move(over), shape);
    return std::make_unique<TrackStage>(std::move(mean), std::move(message), std::move(last));
  }

  bool push_ = false;
};

REGISTER_ALGORITHM(gradient_tracking,
                   "neighbours' means of the weights and of the ranks' steps, so that all come to "
                   "the optimum",
                   GradientTracking);

}  // namespace
}  // namespace pelton
