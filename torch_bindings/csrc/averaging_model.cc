#include "torch_bindings/csrc/averaging_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton::torch_bindings {

absl::StatusOr<std::unique_ptr<AveragingModel>> AveragingModel::Create(
    std::shared_ptr<Backend> backend, ModelOptions options, const NamedTensors& parameters) {
  // Weights are copied in any case: a bucket of segments would serve nobody.
  options.standalone_bytes = PlanOptions::kNoStandalone;
  std::unique_ptr<AveragingModel> model(new AveragingModel(std::move(backend), std::move(options)));
  RETURN_IF_ERROR(model->Install(parameters));
  return model;
}

absl::Status AveragingModel::Install(const NamedTensors& parameters) {
  ASSIGN_OR_RETURN(std::unique_ptr<Algorithm> algorithm,
                   MakeAlgorithm(options_.algorithm, options_.algorithm_options));
  const Schedule schedule = algorithm->schedule();
  if (schedule.subject != Subject::kWeightsAnytime) {
    return absl::InvalidArgumentError(absl::StrCat(
        "algorithm ", options_.algorithm, " does not communicate weights beside the training"));
  }
  ASSIGN_OR_RETURN(std::vector<TensorSpec> specs, SpecsOf(parameters, BucketsAt::kHost));
  specs.push_back(AveragingLoop::StopTensor());
  ASSIGN_OR_RETURN(model_,
                   Model::Create(*backend_, options_, std::move(algorithm), std::move(specs)));
  for (const auto& [name, parameter] : parameters) {
    const SlotId slot(static_cast<int32_t>(slots_.size()));
    slots_.push_back(std::make_unique<WeightSlot>(name, parameter));
    slots_.back()->Bind(model_->rounds().DataOf(slot));
    size_bytes_ += slots_.back()->size_bytes();
  }
  AveragingLoopOptions loop;
  loop.pause = schedule.pause;
  loop.round_timeout = options_.timeout;
  // Both places are the slot's own in the bucket, which Bind has named.
  loop.copy_in = [this](SlotId slot, std::byte*) {
    slots_[static_cast<size_t>(slot.value())]->CopyIn();
  };
  loop.add = [this, schedule](SlotId slot, const std::byte*) {
    if (slot.value() == 0) round_count_.fetch_add(1, std::memory_order_relaxed);
    slots_[static_cast<size_t>(slot.value())]->Merge(schedule.kept, schedule.taken);
  };
  ASSIGN_OR_RETURN(loop_, AveragingLoop::Create(model_->rounds(), std::move(loop)));
  return absl::OkStatus();
}

std::vector<std::string> AveragingModel::Changes() const {
  std::vector<std::string> changes;
  for (const auto& slot : slots_) {
    if (std::string change = slot->Change(); !change.empty()) {
      changes.push_back(absl::StrCat(slot->name(), ": ", change));
    }
  }
  return changes;
}

absl::Status AveragingModel::CheckAttached() const {
  RETURN_IF_ERROR(CheckNotForkedChild());
  if (loop_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("averaging of model '", options_.name, "' has ended"));
}

absl::Status AveragingModel::Claim() {
  RETURN_IF_ERROR(CheckAttached());
  return loop_->Claim(Clock::Real().Now() + options_.timeout);
}

void AveragingModel::Release() {
  if (loop_ != nullptr && !IsForkedChild()) loop_->Release();
}

absl::Status AveragingModel::Stop(absl::Duration timeout) {
  RETURN_IF_ERROR(CheckAttached());
  return loop_->Stop(Clock::Real().Now() + timeout);
}

absl::Status AveragingModel::Resume() {
  RETURN_IF_ERROR(CheckAttached());
  return loop_->Resume();
}

std::vector<std::vector<std::string>> AveragingModel::Buckets() const {
  std::vector<std::vector<std::string>> buckets;
  if (model_ == nullptr) return buckets;
  for (const BucketLayout& bucket : model_->rounds().plan().buckets()) {
    std::vector<std::string> names;
    for (SlotId slot : bucket.slots) {
      const auto index = static_cast<size_t>(slot.value());
      if (index < slots_.size()) names.push_back(slots_[index]->name());  // not the stop tensor
    }
    if (!names.empty()) buckets.push_back(std::move(names));
  }
  return buckets;
}

void AveragingModel::Detach(absl::Duration timeout) {
  if (loop_ == nullptr || IsForkedChild()) return;
  // Where the others do not stop in time, they are told by the end of the loop.
  if (timeout > absl::ZeroDuration()) Stop(timeout).IgnoreError();
  loop_.reset();
  model_.reset();
}

}  // namespace pelton::torch_bindings
