#include "torch_bindings/csrc/weight_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton::torch_bindings {
namespace {

constexpr char kOpenResult[] = "result of the open round";

// What the rounds restore, and the results of a round that was open, which they know nothing of.
std::pair<ModelState, std::vector<TensorState>> SplitOpenResults(const ModelState& state) {
  std::pair<ModelState, std::vector<TensorState>> split{{state.rounds, state.order, {}}, {}};
  for (const TensorState& tensor : state.tensors) {
    (tensor.key == kOpenResult ? split.second : split.first.tensors).push_back(tensor);
  }
  return split;
}

absl::Status CheckSubject(const Schedule& schedule, const std::string& name) {
  if (schedule.subject == Subject::kWeightsInForward) return absl::OkStatus();
  if (schedule.subject == Subject::kWeightsAfterStep) return absl::OkStatus();
  if (schedule.subject == Subject::kMomenta) return absl::OkStatus();  // of an optimizer that asks
  return absl::InvalidArgumentError(
      absl::StrCat("algorithm ", name, " does not communicate weights in step with the training"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<WeightModel>> WeightModel::Create(std::shared_ptr<Backend> backend,
                                                                 ModelOptions options,
                                                                 const NamedTensors& parameters,
                                                                 const ModelState& state) {
  options.first_round = Round(state.rounds + 1);
  // Weights are copied in any case: a bucket of segments would serve nobody.
  options.standalone_bytes = PlanOptions::kNoStandalone;
  std::shared_ptr<WeightModel> model(new WeightModel(std::move(backend), std::move(options)));
  RETURN_IF_ERROR(model->Install(parameters, state));
  return model;
}

absl::Status WeightModel::Install(const NamedTensors& parameters, const ModelState& state) {
  ASSIGN_OR_RETURN(std::unique_ptr<Algorithm> algorithm,
                   MakeAlgorithm(options_.algorithm, options_.algorithm_options));
  schedule_ = algorithm->schedule();
  RETURN_IF_ERROR(CheckSubject(schedule_, options_.algorithm));
  ASSIGN_OR_RETURN(std::vector<TensorSpec> specs, SpecsOf(parameters, BucketsAt::kHost));
  ASSIGN_OR_RETURN(model_,
                   Model::Create(*backend_, options_, std::move(algorithm), std::move(specs)));
  for (const auto& [name, parameter] : parameters) {
    const SlotId slot(static_cast<int32_t>(slots_.size()));
    slots_.push_back(std::make_unique<WeightSlot>(name, parameter));
    slots_.back()->Bind(rounds().DataOf(slot));
    slots_.back()->CopyIn();
  }
  rounds().Prime();
  const auto [between_rounds, open_results] = SplitOpenResults(state);
  RETURN_IF_ERROR(Restore(between_rounds, rounds(), Clock::Real().Now() + options_.timeout));
  // A plan that was restored has buckets of its own.
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i]->Bind(rounds().DataOf(SlotId(static_cast<int32_t>(i))));
  }
  return Reopen(open_results);
}

std::vector<std::string> WeightModel::Changes() const {
  std::vector<std::string> changes;
  for (const auto& slot : slots_) {
    if (std::string change = slot->Change(); !change.empty()) {
      changes.push_back(absl::StrCat(slot->name(), ": ", change));
    }
  }
  return changes;
}

absl::Status WeightModel::Begin() {
  RETURN_IF_ERROR(CheckNotForkedChild());
  RETURN_IF_ERROR(failure_);
  if (is_open_) {
    return absl::FailedPreconditionError(absl::StrCat("round ", rounds().round().value(),
                                                      " of model '", options_.name, "' is open"));
  }
  is_open_ = true;
  failure_ = MarkAll();
  return failure_;
}

// What is not communicated in this round is marked as well: every round has all tensors (ALL-1).
absl::Status WeightModel::MarkAll() {
  communicates_.resize(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    const SlotId slot(static_cast<int32_t>(i));
    communicates_[i] = rounds().Communicates(slot);
    if (communicates_[i]) {
      slots_[i]->CopyIn();
      statistics_.bytes += slots_[i]->size_bytes();
      statistics_.copied_bytes += 2 * slots_[i]->size_bytes();
    }
    RETURN_IF_ERROR(rounds().MarkReady(slot));
  }
  return rounds().EndRound();
}

absl::Status WeightModel::Finish() {
  RETURN_IF_ERROR(failure_);
  if (!is_open_) return absl::OkStatus();
  is_open_ = false;
  if (!has_results_) failure_ = WaitRound();
  RETURN_IF_ERROR(failure_);
  has_results_ = false;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (communicates_[i]) slots_[i]->Merge(schedule_.kept, schedule_.taken);
  }
  return absl::OkStatus();
}

absl::Status WeightModel::WaitRound() {
  const absl::Time start = Clock::Real().Now();
  const absl::Status status = rounds().WaitRound(start + options_.timeout);
  statistics_.wait_seconds += absl::ToDoubleSeconds(Clock::Real().Now() - start);
  ++statistics_.rounds;
  return status;
}

std::vector<std::vector<std::string>> WeightModel::Buckets() const {
  std::vector<std::vector<std::string>> buckets;
  if (model_ == nullptr) return buckets;
  for (const BucketLayout& bucket : rounds().plan().buckets()) {
    std::vector<std::string>& names = buckets.emplace_back();
    for (SlotId slot : bucket.slots) names.push_back(slots_[slot.value()]->name());
  }
  return buckets;
}

absl::StatusOr<ModelState> WeightModel::State() {
  RETURN_IF_ERROR(failure_);
  if (is_open_ && schedule_.delay == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("round ", rounds().round().value(), " of model '", options_.name,
                     "' is open: its state can be told once it has ended"));
  }
  if (is_open_ && !has_results_) {
    failure_ = WaitRound();
    RETURN_IF_ERROR(failure_);
    has_results_ = true;
  }
  ModelState state = StateOf(rounds());
  if (!is_open_) return state;
  for (TensorState& result : OpenResults()) state.tensors.push_back(std::move(result));
  return state;
}

std::vector<TensorState> WeightModel::OpenResults() const {
  std::vector<TensorState> results;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (communicates_[i]) {
      results.push_back({kOpenResult, slots_[i]->name(), 0, slots_[i]->Result()});
    }
  }
  return results;
}

absl::Status WeightModel::Reopen(const std::vector<TensorState>& results) {
  is_open_ = has_results_ = !results.empty();
  communicates_.assign(slots_.size(), false);
  for (const TensorState& result : results) {
    size_t i = 0;
    while (i < slots_.size() && slots_[i]->name() != result.tensor) ++i;
    if (i == slots_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("state: the model has no tensor '", result.tensor, "'"));
    }
    RETURN_IF_ERROR(Annotate(slots_[i]->SetResult(result.values), "state"));
    communicates_[i] = true;
  }
  return absl::OkStatus();
}

WeightModel::Statistics WeightModel::statistics() const {
  Statistics statistics = statistics_;
  if (model_ != nullptr) statistics.sent_bytes = model_->sent_bytes();
  return statistics;
}

void WeightModel::Detach() {
  is_open_ = has_results_ = false;
  model_.reset();
}

}  // namespace pelton::torch_bindings
