// Gradient allreduce: after each backward pass every rank holds the average (or sum) of all ranks'
// gradients, so that all of them take the same optimizer step.
//
// Steps: one allreduce per segment of a bucket, started as soon as the bucket is ready.
// Bytes: for a bucket of B bytes on n ranks those of the communicator's allreduce of B bytes.
// Result: bitwise equal on all ranks (SUM-1a), and to the sum in rank order where the
// communicator's schedule promises that (SUM-1b).
#include "algorithms/algorithm.h"
#include "core/base/status.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

constexpr std::array kDTypes = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                                DType::kInt32,   DType::kInt64,   DType::kUInt8};

// Options:
//   average       true (default): divide by the world size; false: sum. Integers are always summed.
//   hierarchical  accepted, so that a script may name it: a communicator of several hosts composes
//                 shared memory and the wire in either case (docs/hierarchy.md).
// Threads: as Algorithm. Owns: its options.
class GradientAllReduce final : public Algorithm {
 public:
  absl::Status Configure(const AlgorithmOptions& options) override {
    for (const auto& [name, value] : options) {
      if (name == "average") {
        ASSIGN_OR_RETURN(average_, ParseBoolOption(name, value));
      } else if (name == "hierarchical") {
        RETURN_IF_ERROR(ParseBoolOption(name, value).status());
      } else {
        return UnknownOption(name, "average, hierarchical");
      }
    }
    return absl::OkStatus();
  }

  PlanConstraints Constraints() const override {
    PlanConstraints constraints;
    constraints.used_tail_op = average_ ? ReduceOp::kAvg : ReduceOp::kSum;
    return constraints;
  }

  std::optional<ReduceOp> EqualsReduction(DType dtype) const override { return ReductionOf(dtype); }

  bool Takes(const TensorSpec& tensor) const override {
    return std::find(kDTypes.begin(), kDTypes.end(), tensor.dtype) != kDTypes.end();
  }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers&) override {
    PipelineSpec spec;
    spec.stages.push_back(MakeUsedTailStage());
    spec.stages.push_back(MakeAllReduceStage(ReductionOf(layout.dtype)));
    spec.dtypes.assign(kDTypes.begin(), kDTypes.end());
    spec.yields_used_tail = true;
    return spec;
  }

 private:
  ReduceOp ReductionOf(DType dtype) const {
    return average_ && IsFloatingPoint(dtype) ? ReduceOp::kAvg : ReduceOp::kSum;
  }

  bool average_ = true;
};

REGISTER_ALGORITHM(gradient_allreduce, "average of all ranks' gradients, bucket by bucket",
                   GradientAllReduce);

}  // namespace
}  // namespace pelton
