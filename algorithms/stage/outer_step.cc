#include "algorithms/stage/outer_step.h"

#include <cstring>
#include <utility>

#include "algorithms/stage/compressed_algorithm.h"
#include "comm/reduction/linear_combination.h"
#include "core/base/status.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// Where the anchor of one bucket is while its round lasts. The first stage keeps it, the last one
// moves it.
// Threads: its stages'. Owns: nothing.
struct Anchor {
  bool is_own = false;  // whether other ranks have another
  std::byte* data = nullptr;
};

// Prepare: the bucket, a rank's weights x, becomes a - x.
// Threads: as Stage. Owns: a share of what the two stages know.
class ProgressStage final : public Stage {
 public:
  explicit ProgressStage(std::shared_ptr<Anchor> anchor) : anchor_(std::move(anchor)) {}
  absl::string_view name() const override { return "progress"; }
  StageKind kind() const override { return StageKind::kPrepare; }

  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    auto state = std::make_unique<FlatState>();
    state->Add({.name = "anchor",
                .dtype = layout.dtype,
                .scope = anchor_->is_own ? StateScope::kReplica : StateScope::kCommon,
                .count = layout.flat_count});
    return state;
  }

  void Prime(const BucketLayout& layout, const std::byte* flat, StageState& state) const override {
    if (layout.flat_count == 0) return;
    std::memcpy(state.buffers()[0].data, flat, layout.flat_count * SizeOf(layout.dtype));
  }

  absl::Status Start(BucketRun& run, StageState* state) override {
    anchor_->data = state->buffers()[0].data;
    if (run.layout().flat_count == 0) return absl::OkStatus();
    const DType dtype = run.layout().dtype;
    const Term terms[] = {{anchor_->data, 1, dtype}, {run.flat(), -1, dtype}};
    LinearCombination(terms, {run.flat(), dtype}, run.layout().flat_count);
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Anchor> anchor_;
};

// Merge: the bucket, the mean g of the ranks' progress, becomes the anchor after its step.
// Threads: as Stage. Owns: a share of what the two stages know.
class OuterStepStage final : public Stage {
 public:
  OuterStepStage(const OuterStepOptions& options, std::shared_ptr<Anchor> anchor)
      : rate_(options.learning_rate),
        momentum_(options.momentum),
        nesterov_(options.nesterov),
        anchor_(std::move(anchor)) {}
  absl::string_view name() const override { return "outer step"; }
  StageKind kind() const override { return StageKind::kMerge; }

  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    if (momentum_ == 0) return nullptr;
    auto state = std::make_unique<FlatState>();
    state->Add({.name = "momentum",
                .dtype = VelocityTypeOf(layout.dtype),
                .scope = anchor_->is_own ? StateScope::kOwn : StateScope::kCommon,
                .count = layout.flat_count});
    return state;
  }

  absl::Status Start(BucketRun& run, StageState* state) override {
    const uint64_t count = run.layout().flat_count;
    if (count == 0) return absl::OkStatus();
    const DType dtype = run.layout().dtype;
    const Term gradient = {run.flat(), 1, dtype};
    Term velocity = {nullptr, 0, VelocityTypeOf(dtype)};
    if (state != nullptr) {
      velocity.data = state->buffers()[0].data;
      const Term moved[] = {{velocity.data, momentum_, velocity.dtype}, gradient};
      LinearCombination(moved, {state->buffers()[0].data, velocity.dtype}, count);
    }
    Step(gradient, velocity, {anchor_->data, dtype}, count);
    std::memcpy(run.flat(), anchor_->data, count * SizeOf(dtype));
    return absl::OkStatus();
  }

 private:
  // `velocity` has no data where there is no momentum.
  void Step(const Term& gradient, const Term& velocity, CombinationTarget anchor,
            uint64_t count) const {
    const Term before = {anchor.data, 1, anchor.dtype};
    const Term down = {gradient.data, -rate_, gradient.dtype};
    if (velocity.data == nullptr) return LinearCombination({before, down}, anchor, count);
    if (!nesterov_) {
      const Term along = {velocity.data, -rate_, velocity.dtype};
      return LinearCombination({before, along}, anchor, count);
    }
    const Term ahead = {velocity.data, -rate_ * momentum_, velocity.dtype};
    LinearCombination({before, down, ahead}, anchor, count);
  }

  // Small gradients would be lost in a velocity of 16 bits.
  static DType VelocityTypeOf(DType dtype) {
    return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  }

  const double rate_;
  const double momentum_;
  const bool nesterov_;
  const std::shared_ptr<Anchor> anchor_;
};

}  // namespace

absl::Status AddOuterStep(const OuterStepOptions& options, const BucketLayout& layout,
                          const Tiers& tiers, PipelineSpec& spec) {
  const auto anchor = std::make_shared<Anchor>();
  spec.stages.push_back(std::make_unique<ProgressStage>(anchor));
  if (options.codec == nullptr) {
    spec.stages.push_back(MakeAllReduceStage(ReduceOp::kAvg));
  } else {
    const CompressedAllReduceOptions exchange{.codec = options.codec,
                                              .error_feedback = options.error_feedback};
    ASSIGN_OR_RETURN(PipelineSpec compressed, CompressedAllReduce(exchange, layout, tiers));
    for (std::unique_ptr<Stage>& stage : compressed.stages) {
      spec.stages.push_back(std::move(stage));
    }
  }
  spec.stages.push_back(std::make_unique<OuterStepStage>(options, anchor));
  return absl::OkStatus();
}

void AddOwnOuterStep(const OuterStepOptions& options, PipelineSpec& spec) {
  const auto anchor = std::make_shared<Anchor>(Anchor{.is_own = true});
  spec.stages.push_back(std::make_unique<ProgressStage>(anchor));
  spec.stages.push_back(std::make_unique<OuterStepStage>(options, anchor));
}

}  // namespace pelton
