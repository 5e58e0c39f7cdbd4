#include "algorithms/stage/compression_options.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<bool> CompressionOptions::Read(absl::string_view name, absl::string_view value) {
  if (name == "codec") {
    codec_name_ = std::string(value);
    return true;
  }
  if (absl::ConsumePrefix(&name, "codec.")) {
    codec_options_[std::string(name)] = std::string(value);
    return true;
  }
  if (name != "error_feedback") return false;
  if (value == "auto") {
    error_feedback_.reset();
    return true;
  }
  const absl::StatusOr<bool> is_on = ParseBoolOption(name, value);
  if (!is_on.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(is_on.status().message(), ", nor 'auto'"));
  }
  error_feedback_ = *is_on;
  return true;
}

absl::Status CompressionOptions::Finish() {
  absl::StatusOr<std::unique_ptr<Codec>> codec = MakeCodec(codec_name_, codec_options_);
  if (!codec.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("option codec is '", codec_name_, "': ", codec.status().message()));
  }
  codec_ = *std::move(codec);
  return absl::OkStatus();
}

}  // namespace pelton
