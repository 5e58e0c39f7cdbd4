// Elementwise maximum of all ranks' tensors.
// Steps: one allreduce per segment of a bucket. Bytes: those of the communicator's allreduce.
#include "algorithms/algorithm.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// Threads: as Algorithm. Owns: nothing.
class ElementwiseMax final : public Algorithm {
 public:
  std::string BytesSent() const override { return "those of an allreduce of B bytes"; }

  // Complex numbers have no largest one.
  bool Takes(const TensorSpec& tensor) const override { return !IsComplex(tensor.dtype); }

  std::optional<ReduceOp> EqualsReduction(DType) const override { return ReduceOp::kMax; }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers&) override {
    PipelineSpec spec;
    spec.stages.push_back(MakeAllReduceStage(ReduceOp::kMax));
    return spec;
  }
};

REGISTER_ALGORITHM(elementwise_max, "largest value of all ranks", ElementwiseMax);

}  // namespace
}  // namespace pelton
