// The options that every algorithm with a codec has.
#ifndef PELTON_ALGORITHMS_STAGE_COMPRESSION_OPTIONS_H_
#define PELTON_ALGORITHMS_STAGE_COMPRESSION_OPTIONS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "algorithms/codec/codec.h"
#include "core/registry/option_table.h"

namespace pelton {

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

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_COMPRESSION_OPTIONS_H_
