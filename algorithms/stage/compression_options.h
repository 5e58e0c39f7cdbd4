// The options that every algorithm with a codec has.
#ifndef PELTON_ALGORITHMS_STAGE_COMPRESSION_OPTIONS_H_
#define PELTON_ALGORITHMS_STAGE_COMPRESSION_OPTIONS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "algorithms/algorithm.h"
#include "algorithms/codec/codec.h"

namespace pelton {

// Options:
//   codec           a registered codec's name
//   codec.<option>  an option of that codec
//   error_feedback  auto (default): as the codec needs it; true; false
// Threads: one at a time. Owns: what was read.
class CompressionOptions {
 public:
  explicit CompressionOptions(std::string default_codec) : codec_name_(std::move(default_codec)) {}

  // What to add to the list of options that an algorithm knows.
  static constexpr absl::string_view kKnown = "codec, codec.<option of the codec>, error_feedback";

  // True if the option is one of these, and is read. Errors: InvalidArgument: a value of
  // error_feedback that does not fit.
  absl::StatusOr<bool> Read(absl::string_view name, absl::string_view value);
  // After the last Read. Errors: InvalidArgument: no such codec, or its options.
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
