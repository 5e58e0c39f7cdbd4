// What the algorithms have in common whose exchange is a compressed allreduce.
#ifndef PELTON_ALGORITHMS_STAGE_COMPRESSED_ALGORITHM_H_
#define PELTON_ALGORITHMS_STAGE_COMPRESSED_ALGORITHM_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "algorithms/algorithm.h"
#include "algorithms/codec/codec.h"
#include "core/registry/option_table.h"

namespace pelton {

// The options that every algorithm with a codec has.
// Threads: one at a time. Owns: what was read.
class CompressionOptions {
 public:
  static constexpr absl::string_view kNone = "none";

  // For algorithms that encode only where they are asked to.
  CompressionOptions() : CompressionOptions(std::string(kNone)) {}
  // With `kNone` for a default, "none" is one of the values.
  explicit CompressionOptions(std::string default_codec)
      : may_be_none_(default_codec == kNone), codec_name_(std::move(default_codec)) {}

  // The options `codec`, those of the codec, and `error_feedback`.
  void Bind(OptionTable& table);
  // The same without `error_feedback`: of an algorithm that needs none.
  void BindCodec(OptionTable& table);
  // After they are read. Errors: InvalidArgument: the options of the codec, or options
  // without a codec.
  absl::Status Finish();

  // After Finish; shared with the stages, which may outlive the algorithm. Null for none.
  const std::shared_ptr<const Codec>& codec() const { return codec_; }
  bool error_feedback() const {
    return codec_ != nullptr && error_feedback_.value_or(codec_->NeedsErrorFeedback());
  }
  // Whether messages may be of `dtype`. After Finish.
  bool Takes(DType dtype) const { return codec_ == nullptr || codec_->Takes(dtype); }

 private:
  bool may_be_none_;
  std::string codec_name_;
  CodecOptions codec_options_;
  std::optional<bool> error_feedback_;  // nothing: auto
  std::shared_ptr<const Codec> codec_;
};

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
  bool hierarchical_ = true;
  CompressionOptions compression_;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_COMPRESSED_ALGORITHM_H_
