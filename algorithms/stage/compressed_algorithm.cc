#include "algorithms/stage/compressed_algorithm.h"

#include "absl/strings/str_cat.h"
#include "algorithms/stage/compressed_allreduce.h"
#include "core/base/status.h"

namespace pelton {

CompressedAlgorithm::CompressedAlgorithm(const Variant& variant)
    : variant_(variant), compression_(variant.default_codec) {}

void CompressedAlgorithm::BindOptions(OptionTable& table) {
  if (variant_.may_sum) {
    table.Bool("average", &average_, "true: divide by the number of ranks; false: sum");
  }
  table.Bool("hierarchical", &hierarchical_, "true: only the hosts' leaders exchange messages");
  compression_.Bind(table);
}

std::string CompressedAlgorithm::BytesSent() const {
  return "2 (n - 1) / n times the encoded bucket";
}

Schedule CompressedAlgorithm::schedule() const {
  Schedule schedule;
  schedule.source = variant_.source;
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
