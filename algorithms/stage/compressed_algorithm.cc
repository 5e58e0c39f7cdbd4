#include "algorithms/stage/compressed_algorithm.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/stage/compressed_exchange.h"
#include "algorithms/stage/tier_stages.h"
#include "comm/reduction/linear_combination.h"
#include "core/base/status.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// Whether nobody is beyond the reach of full precision.
bool IsAlone(const Tiers& tiers) {
  return tiers.all->world_size().value() == 1 || (tiers.are_open() && tiers.host_sizes.size() == 1);
}

// What is finite stays finite: hosts pass on their means. Hosts of one size count alike; else each
// counts its share of the ranks, but on a device, where nothing scales, they pass on their sums.
// With error feedback the result is a mean over hosts all the same, so that what a host holds back
// counts as it does in every other group (StateScope::kOwn). A host with more ranks than others
// passes on more than its mean then, of which float16 may overflow.
struct HostPlan {
  ReduceOp op = ReduceOp::kSum;  // of a host's ranks
  double share = 1;              // of the result; 1: it is left as it is
  uint64_t divisor = 1;          // of the sum of the hosts'
};

HostPlan PlanOf(const CompressedAllReduceOptions& options, const Tiers& tiers) {
  const auto world_size = static_cast<uint64_t>(tiers.all->world_size().value());
  if (!options.average) return {};
  if (!tiers.are_open()) return {ReduceOp::kSum, 1, world_size};
  const std::vector<int32_t>& sizes = tiers.host_sizes;
  if (std::equal(sizes.begin() + 1, sizes.end(), sizes.begin())) {
    return {ReduceOp::kAvg, 1, sizes.size()};
  }
  if (tiers.device != nullptr) return {ReduceOp::kSum, 1, world_size};
  const uint64_t divisor = options.error_feedback ? sizes.size() : 1;
  const auto mine = static_cast<uint64_t>(tiers.host->world_size().value());
  return {ReduceOp::kAvg, static_cast<double>(mine * divisor) / static_cast<double>(world_size),
          divisor};
}

// The elements of the slots times `factor`.
std::unique_ptr<Stage> MakeScaleStage(double factor) {
  return MakeLocalStage("scale", [factor](const BucketRun& run, auto) {
    const DType dtype = run.layout().dtype;
    const Term term = {run.flat(), factor, dtype};
    LinearCombination({&term, 1}, {run.flat(), dtype}, run.layout().content_count);
  });
}

}  // namespace

absl::StatusOr<PipelineSpec> CompressedAllReduce(const CompressedAllReduceOptions& options,
                                                 const BucketLayout& layout, const Tiers& tiers) {
  if (!options.codec->Takes(layout.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec: it does not take ", NameOf(layout.dtype)));
  }
  PipelineSpec spec;
  if (IsAlone(tiers)) {
    if (options.error_feedback && tiers.device == nullptr) {
      const double share = options.average ? 1 : 1.0 / tiers.all->world_size().value();
      spec.stages.push_back(MakeDeliverStage(
          kCompressedExchange, layout,
          {{.name = kResidual}, {.name = kServerResidual, .scope = StateScope::kPassedOn}}, share));
    }
    spec.stages.push_back(MakeAllReduceStage(options.average ? ReduceOp::kAvg : ReduceOp::kSum));
    return spec;
  }
  const HostPlan plan = PlanOf(options, tiers);
  const CompressedExchangeOptions exchange{.codec = options.codec,
                                           .error_feedback = options.error_feedback,
                                           .divisor = plan.divisor,
                                           .device = tiers.device};
  const auto add_exchange = [&](Communicator& ranks, const std::vector<int32_t>&) -> absl::Status {
    if (plan.share != 1) spec.stages.push_back(MakeScaleStage(plan.share));
    ASSIGN_OR_RETURN(spec.stages.emplace_back(),
                     MakeCompressedExchangeStage(exchange, layout, ranks));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(AddExchangeOfPeers(tiers, tiers.are_open(), plan.op, add_exchange, spec));
  return spec;
}

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

PlanConstraints CompressedAlgorithm::Constraints() const { return {.allows_standalone = false}; }

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
