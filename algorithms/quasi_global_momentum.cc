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

#include "algorithms/algorithm.h"
#include "algorithms/codec/error_feedback.h"
#include "algorithms/stage/graph_algorithm.h"
#include "algorithms/stage/neighbor_mean.h"
#include "comm/reduction/linear_combination.h"
#include "core/base/status.h"
#include "core/pipeline/pipeline.h"

namespace pelton {
namespace {

constexpr NumberRange kFraction = {0, 1};

// What the first stage of a bucket keeps and the last one changes.
// Threads: its stages'. Owns: nothing.
struct Kept {
  StateBuffer momentum;
  StateBuffer weights;
};

// Prepare: the bucket, x', becomes x' - b h.
// Threads: as Stage. Owns: a share of where its state is.
class ApplyMomentumStage final : public Stage {
 public:
  ApplyMomentumStage(double factor, std::shared_ptr<Kept> kept)
      : factor_(factor), kept_(std::move(kept)) {}
  absl::string_view name() const override { return "quasi-global momentum"; }
  StageKind kind() const override { return StageKind::kPrepare; }

  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    auto state = std::make_unique<FlatState>();
    state->Add(
        {.name = "momentum", .dtype = FeedbackDType(layout.dtype), .count = layout.flat_count});
    state->Add({.name = "weights",
                .dtype = layout.dtype,
                .scope = StateScope::kReplica,
                .count = layout.flat_count});
    return state;
  }

  void Prime(const BucketLayout& layout, const std::byte* flat, StageState& state) const override {
    if (layout.flat_count == 0) return;
    std::memcpy(state.buffers()[1].data, flat, layout.flat_count * SizeOf(layout.dtype));
  }

  absl::Status Start(BucketRun& run, StageState* state) override {
    kept_->momentum = state->buffers()[0];
    kept_->weights = state->buffers()[1];
    if (run.layout().flat_count == 0) return absl::OkStatus();
    const DType dtype = run.layout().dtype;
    const Term terms[] = {{run.flat(), 1, dtype},
                          {kept_->momentum.data, -factor_, kept_->momentum.dtype}};
    LinearCombination(terms, {run.flat(), dtype}, run.layout().flat_count);
    return absl::OkStatus();
  }

 private:
  const double factor_;
  const std::shared_ptr<Kept> kept_;
};

// Merge: the momentum takes in how far the weights have come; the bucket stays as it is.
// Threads: as Stage. Owns: a share of where the state is.
class UpdateMomentumStage final : public Stage {
 public:
  UpdateMomentumStage(double factor, std::shared_ptr<Kept> kept)
      : factor_(factor), kept_(std::move(kept)) {}
  absl::string_view name() const override { return "momentum update"; }
  StageKind kind() const override { return StageKind::kMerge; }

  absl::Status Start(BucketRun& run, StageState*) override {
    const uint64_t count = run.layout().flat_count;
    if (count == 0) return absl::OkStatus();
    const DType dtype = run.layout().dtype;
    const StateBuffer& momentum = kept_->momentum;
    std::byte* const weights = kept_->weights.data;
    // The difference first: both are large where it is small.
    const Term come[] = {{weights, 1, dtype}, {run.flat(), -1, dtype}};
    LinearCombination(come, {weights, dtype}, count);
    const Term terms[] = {{momentum.data, factor_, momentum.dtype}, {weights, 1 - factor_, dtype}};
    LinearCombination(terms, {momentum.data, momentum.dtype}, count);
    std::memcpy(weights, run.flat(), count * SizeOf(dtype));
    return absl::OkStatus();
  }

 private:
  const double factor_;
  const std::shared_ptr<Kept> kept_;
};

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
    spec.stages.push_back(std::make_unique<ApplyMomentumStage>(momentum_, kept));
    spec.stages.push_back(MakeNeighborMeanStage(*tiers.all, std::move(over), layout));
    spec.stages.push_back(std::make_unique<UpdateMomentumStage>(momentum_, kept));
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
