#include "algorithms/algorithm.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"

namespace pelton {
namespace {

std::string TextOf(Source source) {
  if (source == Source::kMomenta) return "an optimizer's first moments";
  return std::string(NameOf(source));
}

std::string TextOf(TriggerKind trigger) {
  switch (trigger) {
    case TriggerKind::kWhenReady:
      return "in the backward pass";
    case TriggerKind::kInForward:
      return "from before the forward pass to after the backward pass";
    case TriggerKind::kAfterStep:
      return "after an optimizer's step";
    case TriggerKind::kTimer:
      return "by a timer beside the training";
    case TriggerKind::kOnCall:
      return "when the training asks for it";
  }
  return "";
}

std::vector<DType> TakenBy(const Algorithm& algorithm) {
  std::vector<DType> taken;
  for (int number = 0; number < kDTypeCount; ++number) {
    TensorSpec tensor;
    tensor.dtype = static_cast<DType>(number);
    if (algorithm.Takes(tensor)) taken.push_back(tensor.dtype);
  }
  return taken;
}

}  // namespace

absl::Status Algorithm::Configure(const AlgorithmOptions& options) {
  OptionTable table;
  BindOptions(table);
  RETURN_IF_ERROR(table.Parse(options));
  return CheckOptions();
}

absl::StatusOr<AlgorithmDescription> DescriptionOf(const std::string& name) {
  ASSIGN_OR_RETURN(const AlgorithmRegistry::Entry entry, AlgorithmRegistry::Get().Find(name));
  std::unique_ptr<Algorithm> algorithm = entry.factory();
  OptionTable table;
  algorithm->BindOptions(table);
  RETURN_IF_ERROR(algorithm->CheckOptions());
  AlgorithmDescription description;
  description.name = entry.name;
  description.summary = entry.summary;
  const Schedule schedule = algorithm->schedule();
  description.subject = absl::StrCat(TextOf(schedule.source), ", ", TextOf(schedule.trigger));
  description.bytes_sent = algorithm->BytesSent();
  description.dtypes = TakenBy(*algorithm);
  description.ranks_agree = algorithm->RanksAgree();
  description.takes_device_memory = algorithm->TakesDeviceMemory();
  description.options = table.Describe();
  return description;
}

absl::StatusOr<std::unique_ptr<Algorithm>> MakeAlgorithm(const std::string& name,
                                                         const AlgorithmOptions& options) {
  ASSIGN_OR_RETURN(const AlgorithmRegistry::Entry entry, AlgorithmRegistry::Get().Find(name));
  std::unique_ptr<Algorithm> algorithm = entry.factory();
  RETURN_IF_ERROR(Annotate(algorithm->Configure(options), absl::StrCat("algorithm ", name)));
  return algorithm;
}

absl::StatusOr<PipelineSpec> SpecOf(Algorithm& algorithm, const BucketLayout& layout,
                                    const Tiers& tiers) {
  ASSIGN_OR_RETURN(PipelineSpec spec, algorithm.StagesFor(layout, tiers));
  spec.finds_unused = algorithm.FindsUnused(layout);
  if (spec.dtypes.empty()) spec.dtypes = TakenBy(algorithm);
  spec.allows_standalone = spec.allows_standalone && algorithm.Constraints().allows_standalone;
  return spec;
}

absl::StatusOr<Pipeline> MakePipeline(Algorithm& algorithm, const BucketLayout& layout,
                                      const Tiers& tiers) {
  if (algorithm.UsesWindows() && tiers.windows == nullptr) {
    return absl::FailedPreconditionError(
        "its stages use windows, and Tiers::windows is null; a Model (backend/model.h) opens them");
  }
  ASSIGN_OR_RETURN(PipelineSpec spec, SpecOf(algorithm, layout, tiers));
  return Pipeline::Build(std::move(spec), layout);
}

std::string DescribeAlgorithm(const std::string& name, const AlgorithmOptions& options) {
  return absl::StrCat(name, "(", absl::StrJoin(options, ", ", absl::PairFormatter("=")), ")");
}

}  // namespace pelton
