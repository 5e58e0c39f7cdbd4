// What the algorithms have in common whose exchange is a compressed allreduce.
#ifndef PELTON_ALGORITHMS_STAGE_COMPRESSED_ALGORITHM_H_
#define PELTON_ALGORITHMS_STAGE_COMPRESSED_ALGORITHM_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "algorithms/algorithm.h"
#include "algorithms/stage/compression_options.h"

namespace pelton {

// Threads: as Algorithm. Owns: its options.
class CompressedAlgorithm : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override;
  absl::Status CheckOptions() override { return compression_.Finish(); }
  std::string BytesSent() const override;
  Schedule schedule() const override;
  bool IsHierarchical() const override { return hierarchical_; }
  PlanConstraints Constraints() const override;
  bool Takes(const TensorSpec& tensor) const override;
  bool TakesDeviceMemory() const override;
  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override;

 protected:
  // Threads: a value. Owns: its text.
  struct Variant {
    Source source;
    std::string default_codec;
    bool may_sum;  // whether there is an option `average`
  };
  explicit CompressedAlgorithm(const Variant& variant);

 private:
  const Variant variant_;
  bool average_ = true;
  bool hierarchical_ = false;
  CompressionOptions compression_;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_COMPRESSED_ALGORITHM_H_
