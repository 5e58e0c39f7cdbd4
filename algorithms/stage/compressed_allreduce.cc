#include "algorithms/stage/compressed_allreduce.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "algorithms/stage/compressed_exchange.h"
#include "algorithms/stage/tier_stages.h"
#include "core/base/status.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// Whether nobody is beyond the reach of full precision.
bool IsAlone(const Tiers& tiers) {
  return tiers.all->world_size().value() == 1 || (tiers.are_open() && tiers.host_sizes.size() == 1);
}

absl::Status AddExchange(const CompressedAllReduceOptions& options, const BucketLayout& layout,
                         const Tiers& tiers, PipelineSpec& spec) {
  Communicator* const ranks = tiers.are_open() ? tiers.leaders : tiers.all;
  if (ranks == nullptr) return absl::OkStatus();  // leads no host
  const auto world_size = static_cast<uint64_t>(tiers.all->world_size().value());
  CompressedExchangeOptions exchange{.codec = options.codec,
                                     .error_feedback = options.error_feedback,
                                     .divisor = options.average ? world_size : 1,
                                     .device = tiers.device};
  ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage,
                   MakeCompressedExchangeStage(exchange, layout, *ranks));
  spec.stages.push_back(std::move(stage));
  return absl::OkStatus();
}

}  // namespace

PlanConstraints CompressedAllReduceConstraints() {
  PlanConstraints constraints;
  constraints.allows_standalone = false;
  constraints.used_tail_op = ReduceOp::kMax;
  return constraints;
}

absl::StatusOr<PipelineSpec> CompressedAllReduce(const CompressedAllReduceOptions& options,
                                                 const BucketLayout& layout, const Tiers& tiers) {
  if (!options.codec->Takes(layout.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec: it does not take ", NameOf(layout.dtype)));
  }
  PipelineSpec spec;
  spec.allows_standalone = false;
  spec.yields_used_tail = true;
  spec.stages.push_back(MakeUsedTailStage());
  if (IsAlone(tiers)) {
    spec.stages.push_back(MakeAllReduceStage(options.average ? ReduceOp::kAvg : ReduceOp::kSum));
    return spec;
  }
  if (tiers.are_open()) spec.stages.push_back(MakeReduceToLeaderStage(*tiers.host));
  RETURN_IF_ERROR(AddExchange(options, layout, tiers, spec));
  if (tiers.are_open()) spec.stages.push_back(MakeBroadcastFromLeaderStage(*tiers.host));
  return spec;
}

}  // namespace pelton
