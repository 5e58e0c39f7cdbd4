#include "core/pipeline/pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {

absl::string_view NameOf(ApplyPoint point) {
  switch (point) {
    case ApplyPoint::kNow:
      return "now";
    case ApplyPoint::kPostBackward:
      return "post-backward";
  }
  return "unknown apply point";
}

namespace {

absl::Status CheckStages(const std::vector<std::unique_ptr<Stage>>& stages) {
  if (stages.empty() || stages[0]->kind() == StageKind::kApply) {
    return absl::InvalidArgumentError("no stage before the apply stages");
  }
  for (size_t i = 1; i < stages.size(); ++i) {
    const bool is_applied = stages[i - 1]->kind() == StageKind::kApply;
    if (is_applied && stages[i]->kind() != StageKind::kApply) {
      return absl::InvalidArgumentError(absl::StrCat("stage '", stages[i]->name(), "' (",
                                                     NameOf(stages[i]->kind()), ") comes after '",
                                                     stages[i - 1]->name(), "' (apply)"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const PipelineSpec& spec, const BucketLayout& layout) {
  if (layout.device.kind == DeviceKind::kHost) return absl::OkStatus();
  for (const std::unique_ptr<Stage>& stage : spec.stages) {
    if (stage->takes_device_memory()) continue;
    return absl::InvalidArgumentError(absl::StrCat("stage '", stage->name(), "' cannot work on ",
                                                   NameOf(layout.device.kind), " memory"));
  }
  return absl::OkStatus();
}

absl::Status CheckBucket(const PipelineSpec& spec, const BucketLayout& layout) {
  RETURN_IF_ERROR(CheckDevice(spec, layout));
  const auto& dtypes = spec.dtypes;
  if (!dtypes.empty() && std::find(dtypes.begin(), dtypes.end(), layout.dtype) == dtypes.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the stages cannot work on ", NameOf(layout.dtype)));
  }
  if (spec.alignment_count == 0 || layout.flat_count % spec.alignment_count != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the flat part's ", layout.flat_count,
                                                   " elements are no multiple of ",
                                                   spec.alignment_count));
  }
  if (!spec.allows_standalone && !layout.standalone.empty()) {
    return absl::InvalidArgumentError("the stages cannot work on standalone tensors");
  }
  return absl::OkStatus();
}

absl::Status Check(const PipelineSpec& spec, const BucketLayout& layout) {
  if (spec.phase >= spec.period) {
    return absl::InvalidArgumentError(
        absl::StrCat("its phase is ", spec.phase, ", not below its period, ", spec.period));
  }
  RETURN_IF_ERROR(CheckStages(spec.stages));
  return CheckBucket(spec, layout);
}

}  // namespace

absl::StatusOr<Pipeline> Pipeline::Build(PipelineSpec spec, const BucketLayout& layout) {
  RETURN_IF_ERROR(
      Annotate(Check(spec, layout), absl::StrCat("pipeline of bucket ", layout.id.value())));
  return Pipeline(std::move(spec), layout);
}

Pipeline::Pipeline(PipelineSpec spec, const BucketLayout& layout) : spec_(std::move(spec)) {
  for (const std::unique_ptr<Stage>& stage : spec_.stages) {
    states_.push_back(stage->MakeState(layout));
    apply_begin_ += stage->kind() != StageKind::kApply;
  }
  if (spec_.apply_point == ApplyPoint::kNow) apply_begin_ = stage_count();
}

void Pipeline::Prime(const BucketLayout& layout, const std::byte* flat) {
  for (size_t i = 0; i < stage_count(); ++i) {
    if (state(i) != nullptr) stage(i).Prime(layout, flat, *state(i));
  }
}

std::string Pipeline::Describe() const {
  std::string text;
  for (const std::unique_ptr<Stage>& stage : spec_.stages) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", NameOf(stage->kind()), " ", stage->name());
  }
  return absl::StrCat(text, "; applied ", NameOf(spec_.apply_point));
}

}  // namespace pelton
