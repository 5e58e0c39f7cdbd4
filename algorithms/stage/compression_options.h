// The options that every algorithm with a codec has.
#ifndef PELTON_ALGORITHMS_STAGE_COMPRESSION_OPTIONS_H_
#define PELTON_ALGORITHMS_STAGE_COMPRESSION_OPTIONS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "algorithms/codec/codec.h"
#include "core/registry/option_table.h"

namespace pelton {

// Threads: one at a time. Owns: what was read.
class CompressionOptions {
 public:
  explicit CompressionOptions(std::string default_codec) : codec_name_(std::move(default_codec)) {}

  // The options `codec`, those of the codec, and `error_feedback`.
  void Bind(OptionTable& table);
  // After they are read. Errors: InvalidArgument: no such codec, or its options.
  absl::Status Finish();

  // After Finish; shared with the stages, which may outlive the algorithm.
  const std::shared_ptr<const Codec>& codec() const { return codec_; }
  bool error_feedback() const { return error_feedback_.value_or(codec_->NeedsErrorFeedback()); }

 private:
  std::string codec_name_;
  CodecOptions codec_options_;
  std::optional<bool> error_feedback_;  // nothing: auto
  std::shared_ptr<const Codec> codec_;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_COMPRESSION_OPTIONS_H_
