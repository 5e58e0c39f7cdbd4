#include "torch_bindings/csrc/user_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/status.h"
#include "core/bucket/model_rounds.h"

namespace pelton::torch_bindings {
namespace {

absl::Status Detached() { return absl::FailedPreconditionError("the buckets were detached"); }

}  // namespace

absl::StatusOr<std::shared_ptr<UserModel>> UserModel::Create(
    std::shared_ptr<Backend> backend, ModelOptions options, std::vector<TensorSpec> tensors,
    std::vector<UserOperations> operations) {
  std::shared_ptr<UserModel> made(new UserModel(options.timeout));
  made->owned_ = MakeProcessShared(std::make_unique<Owned>());
  Owned& owned = *made->owned_;
  owned.backend = std::move(backend);
  owned.live.resize(tensors.size());
  // What the ranks compare, beside the tensors.
  options.algorithm = "user's";
  for (size_t i = 0; i < operations.size(); ++i) {
    options.algorithm_options[absl::StrCat("bucket ", i)] = DescribeOperations(operations[i]);
  }
  for (const TensorSpec& tensor : tensors) made->round_bytes_ += tensor.size_bytes();
  ASSIGN_OR_RETURN(std::unique_ptr<UserAlgorithm> algorithm,
                   UserAlgorithm::Create(std::move(operations)));
  owned.algorithm = algorithm.get();
  ASSIGN_OR_RETURN(owned.model, Model::Create(*owned.backend, options, std::move(algorithm),
                                              std::move(tensors)));
  return made;
}

absl::StatusOr<UserMemory> UserModel::MemoryOf(SlotId slot) const {
  if (owned_ == nullptr) return Detached();
  const TensorSpec& tensor = rounds().plan().tensor(slot);
  return UserMemory{rounds().DataOf(slot), tensor.count, tensor.dtype, owned_};
}

absl::Status UserModel::CheckMark() const {
  RETURN_IF_ERROR(CheckNotForkedChild());
  if (owned_ == nullptr) return Detached();
  if (!is_finishing_.load(std::memory_order_acquire)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a tensor is marked ready while the round is being waited for");
}

absl::Status UserModel::MarkReady(SlotId slot, UserMemory live) {
  RETURN_IF_ERROR(CheckMark());
  // Between two rounds nobody reads it; whoever marks twice hears of it from the rounds.
  owned_->live[static_cast<size_t>(slot.value())] = std::move(live);
  return rounds().MarkReady(slot);
}

absl::Status UserModel::MarkUnused(SlotId slot) {
  RETURN_IF_ERROR(CheckMark());
  return rounds().MarkUnused(slot);
}

absl::Status UserModel::FinishRound() {
  RETURN_IF_ERROR(CheckNotForkedChild());
  if (owned_ == nullptr) return Detached();
  RETURN_IF_ERROR(failure_);
  if (is_finishing_.exchange(true, std::memory_order_acq_rel)) {
    return absl::FailedPreconditionError("the round is being waited for by another thread");
  }
  const absl::Time start = Clock::Real().Now();
  absl::Status status = rounds().EndRound();
  if (status.ok()) status = rounds().WaitRound(start + timeout_);
  if (status.ok()) status = owned_->algorithm->AddToLive(rounds(), owned_->live, start + timeout_);
  waited_ += Clock::Real().Now() - start;
  if (status.ok()) ++round_count_;
  failure_ = status;
  is_finishing_.store(false, std::memory_order_release);
  return status;
}

bool UserModel::UsedByAny(SlotId slot) const {
  return owned_ == nullptr || rounds().ResultOf(slot).used_by_any;
}

void UserModel::Abort(const absl::Status& reason) {
  if (owned_ != nullptr && !IsForkedChild()) rounds().Abort(reason);
}

std::map<std::string, double> UserModel::Statistics() const {
  std::map<std::string, double> counts = {
      {"rounds", static_cast<double>(round_count_)},
      {"wait_seconds", absl::ToDoubleSeconds(waited_)},
      {"bytes", static_cast<double>(round_bytes_ * round_count_)},
  };
  if (owned_ != nullptr) {
    counts["sent_bytes"] = static_cast<double>(owned_->model->sent_bytes());
    counts["plan_generation"] = rounds().plan().version().value();
  }
  return counts;
}

void UserModel::Detach() { owned_.reset(); }

}  // namespace pelton::torch_bindings
