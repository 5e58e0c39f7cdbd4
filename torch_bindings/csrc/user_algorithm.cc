#include "torch_bindings/csrc/user_algorithm.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"

namespace pelton::torch_bindings {
namespace {

// A bucket that one of the operations cannot work on is refused as a whole.
void RestrictTo(const std::vector<DType>& dtypes, PipelineSpec& spec) {
  if (dtypes.empty()) return;
  if (spec.dtypes.empty()) {
    spec.dtypes = dtypes;
    return;
  }
  const auto is_left_out = [&dtypes](DType dtype) {
    return std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end();
  };
  spec.dtypes.erase(std::remove_if(spec.dtypes.begin(), spec.dtypes.end(), is_left_out),
                    spec.dtypes.end());
}

bool KeepsState(const Stage& stage, const BucketLayout& layout) {
  const std::unique_ptr<StageState> state = stage.MakeState(layout);
  return state != nullptr && !state->buffers().empty();
}

}  // namespace

std::string DescribeOperations(const UserOperations& operations) {
  return absl::StrJoin(operations, ", ", [](std::string* out, const UserOperation& operation) {
    absl::StrAppend(out, operation.algorithm.empty()
                             ? "function"
                             : DescribeAlgorithm(operation.algorithm, operation.options));
  });
}

absl::StatusOr<std::unique_ptr<UserAlgorithm>> UserAlgorithm::Create(
    std::vector<UserOperations> buckets) {
  std::unique_ptr<UserAlgorithm> made(new UserAlgorithm);
  for (size_t i = 0; i < buckets.size(); ++i) {
    std::vector<Step>& steps = made->buckets_.emplace_back();
    made->outcomes_.push_back(std::make_shared<Outcomes>());
    for (UserOperation& operation : buckets[i]) {
      Step& step = steps.emplace_back();
      step.operation = std::move(operation);
      if (step.operation.algorithm.empty()) continue;
      auto algorithm = MakeAlgorithm(step.operation.algorithm, step.operation.options);
      if (!algorithm.ok()) {
        return Annotate(algorithm.status(), absl::StrCat("bucket ", i, ", ", step.operation.name));
      }
      step.algorithm = *std::move(algorithm);
    }
  }
  return made;
}

bool UserAlgorithm::IsHierarchical() const {
  for (const std::vector<Step>& steps : buckets_) {
    for (const Step& step : steps) {
      if (step.algorithm != nullptr && step.algorithm->IsHierarchical()) return true;
    }
  }
  return false;
}

PlanConstraints UserAlgorithm::Constraints() const {
  PlanConstraints constraints;
  constraints.packs_slots = true;
  constraints.allows_standalone = false;
  for (const std::vector<Step>& steps : buckets_) {
    for (const Step& step : steps) {
      if (step.algorithm == nullptr) continue;
      constraints.alignment_count =
          std::lcm(constraints.alignment_count, step.algorithm->Constraints().alignment_count);
    }
  }
  return constraints;
}

absl::StatusOr<PipelineSpec> UserAlgorithm::StagesFor(const BucketLayout& layout,
                                                      const Tiers& tiers) {
  PipelineSpec spec;
  spec.allows_standalone = false;
  std::vector<Step>& steps = buckets_[static_cast<size_t>(layout.id.value())];
  spec.finds_unused = std::any_of(steps.begin(), steps.end(),
                                  [](const Step& step) { return step.algorithm != nullptr; });
  for (Step& step : steps) {
    RETURN_IF_ERROR(Annotate(AddStep(step, layout, tiers, spec), step.operation.name));
  }
  if (spec.stages.empty()) spec.stages.push_back(MakeNothingStage());
  return spec;
}

absl::Status UserAlgorithm::AddStep(Step& step, const BucketLayout& layout, const Tiers& tiers,
                                    PipelineSpec& spec) {
  if (step.algorithm == nullptr) {
    spec.stages.push_back(MakeFunctionStage(step.operation.function, OutcomesOf(layout)));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(PipelineSpec part, step.algorithm->StagesFor(layout, tiers));
  if (part.period != 1) {
    return absl::InvalidArgumentError("it runs in some rounds only; mark the tensors less often");
  }
  RestrictTo(part.dtypes, spec);
  if (!part.dtypes.empty() && spec.dtypes.empty()) {
    return absl::InvalidArgumentError("no dtype suits it and the operations before it");
  }
  spec.alignment_count = std::lcm(spec.alignment_count, part.alignment_count);
  spec.finds_unused = spec.finds_unused && part.finds_unused;
  AddStages(step.operation, layout, std::move(part.stages), spec);
  return absl::OkStatus();
}

void UserAlgorithm::AddStages(const UserOperation& operation, const BucketLayout& layout,
                              std::vector<std::unique_ptr<Stage>> stages, PipelineSpec& spec) {
  AsideStages aside;
  if (operation.peer_weight.count > 0) {
    aside = MakeAsideStages(operation.peer_weight, OutcomesOf(layout));
  }
  if (aside.first != nullptr) spec.stages.push_back(std::move(aside.first));
  if (operation.control != nullptr) {
    spec.stages.push_back(MakeAgreeToStopStage(operation.control));
  }
  for (std::unique_ptr<Stage>& stage : stages) {
    spec.stages.push_back(Adapt(operation, layout, std::move(stage)));
  }
  if (aside.last != nullptr) spec.stages.push_back(std::move(aside.last));
}

std::unique_ptr<Stage> UserAlgorithm::Adapt(const UserOperation& operation,
                                            const BucketLayout& layout,
                                            std::unique_ptr<Stage> stage) const {
  if (operation.control != nullptr) stage = UnlessStopped(std::move(stage), operation.control);
  // On ranks that lead no host no stage may keep any.
  if (!operation.replicas.empty() && KeepsState(*stage, layout)) {
    stage = WithReplicas(std::move(stage), operation.replicas, OutcomesOf(layout));
  }
  return stage;
}

absl::Status UserAlgorithm::Lock(absl::Time deadline) {
  for (const auto& one : Running()) {
    if (absl::Status status = one.second->LockWeights(deadline); !status.ok()) {
      for (const auto& held : locked_) held.second->UnlockWeights().IgnoreError();
      locked_.clear();
      return status;
    }
    locked_.push_back(one);
  }
  return absl::OkStatus();
}

bool UserAlgorithm::AddsToLive(BucketId bucket) const {
  return std::any_of(locked_.begin(), locked_.end(),
                     [bucket](const auto& one) { return one.first == bucket; });
}

absl::Status UserAlgorithm::Commit() {
  for (const std::shared_ptr<Outcomes>& outcomes : outcomes_) outcomes->Commit();
  absl::Status status;
  while (!locked_.empty()) {
    status.Update(locked_.back().second->UnlockWeights());
    locked_.pop_back();
  }
  return status;
}

std::vector<std::pair<BucketId, AveragingControl*>> UserAlgorithm::Running() const {
  std::vector<std::pair<BucketId, AveragingControl*>> running;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    for (const Step& step : buckets_[i]) {
      AveragingControl* const control = step.operation.control.get();
      if (control == nullptr || !control->is_running()) continue;
      running.emplace_back(BucketId(static_cast<int32_t>(i)), control);
    }
  }
  return running;
}

}  // namespace pelton::torch_bindings
