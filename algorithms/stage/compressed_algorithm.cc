#include "algorithms/stage/compressed_algorithm.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/stage/compressed_allreduce.h"
#include "core/base/status.h"

namespace pelton {

void CompressionOptions::Bind(OptionTable& table) {
  BindCodec(table);
  table.BoolOrAuto("error_feedback", &error_feedback_,
                   "add what a message lacks to the next; auto: where the codec needs it");
}

void CompressionOptions::BindCodec(OptionTable& table) {
  std::vector<std::string> codecs;
  if (may_be_none_) codecs.emplace_back(kNone);
  for (const CodecRegistry::Entry& entry : CodecRegistry::Get().List())
    codecs.push_back(entry.name);
  table.Choice("codec", &codec_name_, std::move(codecs), "how messages are encoded");
  table.Nested(
      "codec.", &codec_options_,
      {"codec.<option>", "the codec's", "those of the codec's option", "an option of the codec"});
}

absl::Status CompressionOptions::Finish() {
  if (codec_name_ == kNone) {
    if (codec_options_.empty() && !error_feedback_.has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("option ",
                     codec_options_.empty() ? "error_feedback"
                                            : absl::StrCat("codec.", codec_options_.begin()->first),
                     " is given, but option codec is 'none'"));
  }
  absl::StatusOr<std::unique_ptr<Codec>> codec = MakeCodec(codec_name_, codec_options_);
  if (!codec.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("option codec is '", codec_name_, "': ", codec.status().message()));
  }
  codec_ = *std::move(codec);
  return absl::OkStatus();
}

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
