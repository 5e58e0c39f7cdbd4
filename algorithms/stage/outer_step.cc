#include "algorithms/stage/outer_step.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "algorithms/codec/error_feedback.h"
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

// The bucket, a rank's weights x, becomes a - x.
std::unique_ptr<Stage> MakeProgressStage(const BucketLayout& layout,
                                         const std::shared_ptr<Anchor>& anchor) {
  const StateBuffer kept = {.name = "anchor",
                            .dtype = layout.dtype,
                            .scope = anchor->is_own ? StateScope::kReplica : StateScope::kCommon,
                            .begins_as_weights = true,
                            .count = layout.flat_count};
  const auto progress = [anchor](const BucketRun& run, absl::Span<const StateBuffer> kept) {
    anchor->data = kept[0].data;
    const DType dtype = run.layout().dtype;
    const Term terms[] = {{anchor->data, 1, dtype}, {run.flat(), -1, dtype}};
    LinearCombination(terms, {run.flat(), dtype}, run.layout().flat_count);
  };
  return MakeLocalStage("progress", progress, {kept});
}

// `velocity` has no data where there is no momentum.
void Step(const OuterStepOptions& options, const Term& gradient, const Term& velocity,
          CombinationTarget anchor, uint64_t count) {
  const double rate = options.learning_rate;
  const bool has_momentum = velocity.data != nullptr;
  std::vector<Term> terms = {{anchor.data, 1, anchor.dtype}};
  if (!has_momentum || options.nesterov) terms.push_back({gradient.data, -rate, gradient.dtype});
  if (has_momentum) {
    const double along = options.nesterov ? -rate * options.momentum : -rate;
    terms.push_back({velocity.data, along, velocity.dtype});
  }
  LinearCombination(terms, anchor, count);
}

// The bucket, the mean g of the ranks' progress, becomes the anchor after its step.
std::unique_ptr<Stage> MakeOuterStepStage(const OuterStepOptions& options,
                                          const BucketLayout& layout,
                                          const std::shared_ptr<Anchor>& anchor) {
  std::vector<StateBuffer> kept;
  if (options.momentum != 0) {
    // Small gradients would be lost in a velocity of 16 bits.
    kept.push_back({.name = "momentum",
                    .dtype = FeedbackDType(layout.dtype),
                    .scope = anchor->is_own ? StateScope::kOwn : StateScope::kCommon,
                    .count = layout.flat_count});
  }
  const auto step = [options, anchor](const BucketRun& run, absl::Span<const StateBuffer> kept) {
    const uint64_t count = run.layout().flat_count;
    const DType dtype = run.layout().dtype;
    const Term gradient = {run.flat(), 1, dtype};
    Term velocity;
    if (!kept.empty()) {
      velocity = {kept[0].data, options.momentum, kept[0].dtype};
      LinearCombination({velocity, gradient}, {kept[0].data, kept[0].dtype}, count);
    }
    Step(options, gradient, velocity, {anchor->data, dtype}, count);
    std::memcpy(run.flat(), anchor->data, run.flat_size_bytes());
  };
  return MakeLocalStage("outer step", step, std::move(kept));
}

}  // namespace

absl::Status AddOuterStep(const OuterStepOptions& options, const CompressionOptions& compression,
                          const BucketLayout& layout, const Tiers& tiers, PipelineSpec& spec) {
  const auto anchor = std::make_shared<Anchor>();
  spec.stages.push_back(MakeProgressStage(layout, anchor));
  if (compression.codec() == nullptr) {
    spec.stages.push_back(MakeAllReduceStage(ReduceOp::kAvg));
  } else {
    const CompressedAllReduceOptions exchange{.codec = compression.codec(),
                                              .error_feedback = compression.error_feedback()};
    ASSIGN_OR_RETURN(PipelineSpec compressed, CompressedAllReduce(exchange, layout, tiers));
    for (std::unique_ptr<Stage>& stage : compressed.stages) {
      spec.stages.push_back(std::move(stage));
    }
  }
  spec.stages.push_back(MakeOuterStepStage(options, layout, anchor));
  return absl::OkStatus();
}

void AddOwnOuterStep(const OuterStepOptions& options, const BucketLayout& layout,
                     PipelineSpec& spec) {
  const auto anchor = std::make_shared<Anchor>(Anchor{.is_own = true});
  spec.stages.push_back(MakeProgressStage(layout, anchor));
  spec.stages.push_back(MakeOuterStepStage(options, layout, anchor));
}

}  // namespace pelton
