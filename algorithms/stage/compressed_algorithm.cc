#include "algorithms/stage/compressed_algorithm.h"

#include "absl/strings/str_cat.h"
#include "algorithms/stage/compressed_allreduce.h"
#include "core/base/status.h"

namespace pelton {

CompressedAlgorithm::CompressedAlgorithm(const Variant& variant)
    : variant_(variant), compression_(variant.default_codec) {}

absl::Status CompressedAlgorithm::Configure(const AlgorithmOptions& options) {
  for (const auto& [name, value] : options) RETURN_IF_ERROR(ReadOption(name, value));
  return compression_.Finish();
}

absl::Status CompressedAlgorithm::ReadOption(absl::string_view name, absl::string_view value) {
  if (name == "hierarchical") {
    ASSIGN_OR_RETURN(hierarchical_, ParseBoolOption(name, value));
    return absl::OkStatus();
  }
  if (name == "average" && variant_.may_sum) {
    ASSIGN_OR_RETURN(average_, ParseBoolOption(name, value));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const bool is_known, compression_.Read(name, value));
  if (is_known) return absl::OkStatus();
  return UnknownOption(name, absl::StrCat(variant_.may_sum ? "average, " : "", "hierarchical, ",
                                          CompressionOptions::kKnown));
}

Schedule CompressedAlgorithm::schedule() const {
  Schedule schedule;
  schedule.subject = variant_.subject;
  return schedule;
}

PlanConstraints CompressedAlgorithm::Constraints() const {
  return CompressedAllReduceConstraints();
}

bool CompressedAlgorithm::Takes(const TensorSpec& tensor) const {
  return compression_.codec()->Takes(tensor.dtype);
}

bool CompressedAlgorithm::TakesDeviceMemory() const {
  return !compression_.error_feedback() &&
         compression_.codec()->KernelsOf(DeviceKind::kCuda) != nullptr;
}

absl::StatusOr<PipelineSpec> CompressedAlgorithm::StagesFor(const BucketLayout& layout,
                                                            const Tiers& tiers) {
  CompressedAllReduceOptions options;
  options.codec = compression_.codec();
  options.average = average_;
  options.error_feedback = compression_.error_feedback();
  return CompressedAllReduce(options, layout, tiers);
}

}  // namespace pelton
