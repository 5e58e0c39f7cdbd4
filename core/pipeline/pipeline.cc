#include "core/pipeline/pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {

absl::string_view NameOf(Trigger trigger) {
  switch (trigger) {
    case Trigger::kBucketReady:
      return "bucket ready";
    case Trigger::kForward:
      return "forward";
    case Trigger::kTimer:
      return "timer";
    case Trigger::kUserCall:
      return "user's call";
  }
  return "unknown trigger";
}

absl::string_view NameOf(ApplyPoint point) {
  switch (point) {
    case ApplyPoint::kNow:
      return "now";
    case ApplyPoint::kPostBackward:
      return "post-backward";
    case ApplyPoint::kPostStep:
      return "post-step";
    case ApplyPoint::kPreForward:
      return "pre-forward";
  }
  return "unknown apply point";
}

namespace {

absl::Status CheckStages(const std::vector<std::unique_ptr<Stage>>& stages) {
  if (stages.empty() || stages[0]->kind() == StageKind::kApply) {
    return absl::InvalidArgumentError("no stage before the apply stages");
  }
  int exchanges = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    exchanges += stages[i]->kind() == StageKind::kExchange;
    if (i > 0 && stages[i]->kind() < stages[i - 1]->kind()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stage '", stages[i]->name(), "' (", NameOf(stages[i]->kind()), ") comes after '",
          stages[i - 1]->name(), "' (", NameOf(stages[i - 1]->kind()), ")"));
    }
  }
  if (exchanges > 1) return absl::InvalidArgumentError("more than one exchange stage");
  return absl::OkStatus();
}

absl::Status CheckBucket(const PipelineSpec& spec, const BucketLayout& layout) {
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
  if (spec.period == 0) return absl::InvalidArgumentError("its period is 0");
  if (spec.trigger != Trigger::kBucketReady) {
    return absl::UnimplementedError(
        absl::StrCat("no scheduler serves the trigger '", NameOf(spec.trigger), "' yet"));
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

bool Pipeline::TakeStateFrom(Pipeline& old) {
  if (old.stage_count() != stage_count()) return false;
  for (size_t i = 0; i < stage_count(); ++i) {
    if (old.stage(i).name() != stage(i).name()) return false;
  }
  states_ = std::move(old.states_);
  old.states_.resize(old.stage_count());
  return true;
}

std::string Pipeline::Describe() const {
  std::string text;
  for (const std::unique_ptr<Stage>& stage : spec_.stages) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", NameOf(stage->kind()), " ", stage->name());
  }
  return absl::StrCat(text, "; applied ", NameOf(spec_.apply_point));
}

}  // namespace pelton
