#include "torch_bindings/csrc/user_model.h"

#include <cstring>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "comm/reduction/reduction.h"
#include "core/actor/executor.h"
#include "core/actor/spawn.h"
#include "core/base/fork.h"
#include "core/base/status.h"

namespace pelton::torch_bindings {
namespace {

absl::Status Detached() {
  return absl::FailedPreconditionError(
      "the buckets were detached from the model; wrap the model again before it trains on");
}

size_t IndexOf(SlotId slot) { return static_cast<size_t>(slot.value()); }

}  // namespace

absl::StatusOr<std::shared_ptr<UserModel>> UserModel::Create(std::shared_ptr<Backend> backend,
                                                             ModelOptions options,
                                                             std::vector<TensorSpec> tensors,
                                                             std::vector<UserOperations> operations,
                                                             std::shared_ptr<RangeViewer> viewer) {
  std::shared_ptr<UserModel> made(new UserModel);
  made->owned_ = MakeProcessShared(std::make_unique<Owned>());
  Owned& owned = *made->owned_;
  owned.backend = std::move(backend);
  owned.viewer = std::move(viewer);
  owned.specs = tensors;
  owned.places.resize(tensors.size());
  owned.live.resize(tensors.size());
  owned.is_marked.resize(tensors.size());
  for (int32_t bucket : options.buckets) owned.bucket_of.emplace_back(bucket);
  // What the ranks compare, beside the tensors.
  options.algorithm = "user's";
  options.viewer = owned.viewer.get();
  for (size_t i = 0; i < operations.size(); ++i) {
    options.algorithm_options[absl::StrCat("bucket ", i)] = DescribeOperations(operations[i]);
  }
  if (CallsFunctions(operations)) {
    RETURN_IF_ERROR(owned.backend->OnPoolForBlocking([&](Executor& pool) {
      owned.caller.actor =
          Spawn<StageCaller>(pool, {.name = absl::StrCat("functions of '", options.name, "'")});
    }));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<UserAlgorithm> algorithm,
                   UserAlgorithm::Create(std::move(operations), owned.caller.actor));
  owned.algorithm = algorithm.get();
  PortOptions port;
  port.model = std::move(options);
  port.keeps_order = true;  // the user has chosen it
  ASSIGN_OR_RETURN(owned.port, ModelPort::Create(*owned.backend, std::move(port),
                                                 std::move(algorithm), std::move(tensors), owned));
  return made;
}

void UserModel::Owned::Place(SlotId slot, std::byte* memory) { places[IndexOf(slot)] = memory; }

absl::StatusOr<TensorPort::Brought> UserModel::Owned::Bring(SlotId slot, bool is_used) {
  const size_t i = IndexOf(slot);
  if (is_used) return Brought{nullptr, is_marked[i] != 0};
  // Nobody has marked it: it counts as zeros.
  if (places[i] != nullptr) std::memset(places[i], 0, specs[i].size_bytes());
  return Brought{nullptr, false};
}

void UserModel::Owned::Merge(SlotId slot, const CommitRule&, bool) {
  const UserMemory& memory = live[IndexOf(slot)];
  if (memory.count == 0 || !algorithm->AddsToLive(bucket_of[IndexOf(slot)])) return;
  const std::byte* const terms[] = {memory.data, port->ResultOf(slot).data};
  Reduce(terms, {&memory.data, 1}, memory.count, memory.dtype, ReduceOp::kSum);
}

absl::StatusOr<UserMemory> UserModel::MemoryOf(SlotId slot) const {
  if (owned_ == nullptr) return Detached();
  const TensorSpec& tensor = owned_->specs[IndexOf(slot)];
  return UserMemory{owned_->places[IndexOf(slot)], tensor.count, tensor.dtype, owned_};
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
  // Between two rounds no thread reads it; the rounds refuse a second mark.
  owned_->live[IndexOf(slot)] = std::move(live);
  owned_->is_marked[IndexOf(slot)] = 1;
  if (RangeViewer* viewer = owned_->viewer.get(); viewer != nullptr && !viewer->is_looking()) {
    viewer->Follow();
  }
  return MarkSlot(slot);
}

absl::Status UserModel::MarkUnused(SlotId slot) {
  RETURN_IF_ERROR(CheckMark());
  owned_->is_marked[IndexOf(slot)] = 0;
  return MarkSlot(slot);
}

absl::Status UserModel::MarkSlot(SlotId slot) {
  TrainingEvent ready{.kind = EventKind::kTensorReady};
  ready.slot = slot.value();
  return port().Post(ready);
}

absl::Status UserModel::FinishRound() {
  RETURN_IF_ERROR(CheckNotForkedChild());
  if (owned_ == nullptr) return Detached();
  if (is_finishing_.exchange(true, std::memory_order_acq_rel)) {
    return absl::FailedPreconditionError("the round is being waited for by another thread");
  }
  RangeViewer* const viewer = owned_->viewer.get();
  absl::AnyInvocable<void()> end_range;
  if (viewer != nullptr && viewer->is_looking()) {
    end_range = viewer->Begin("pelton:wait for the round");
  }
  absl::Status status = EndRound();
  if (end_range != nullptr) end_range();
  if (viewer != nullptr) viewer->Leave();
  is_finishing_.store(false, std::memory_order_release);
  return status;
}

absl::Status UserModel::EndRound() {
  RETURN_IF_ERROR(port().failure());
  RETURN_IF_ERROR(port().Post({.kind = EventKind::kBackwardBegins}));
  RETURN_IF_ERROR(port().Post({.kind = EventKind::kBackwardEnds}));
  return port().Wait();
}

bool UserModel::Post(const TrainingEvent& event) {
  if (owned_ == nullptr) return false;
  port().Post(event).IgnoreError();  // no step makes anything due
  return port().trigger().completed_step();
}

bool UserModel::UsedByAny(SlotId slot) const {
  return owned_ == nullptr || port().ResultOf(slot).used_by_any;
}

void UserModel::Abort(const absl::Status& reason) {
  if (owned_ != nullptr && !IsForkedChild()) port().Abort(reason);
}

std::map<std::string, double> UserModel::Statistics() const {
  const ModelPort::Statistics now = owned_ == nullptr ? statistics_ : port().statistics();
  return {{"rounds", static_cast<double>(now.rounds)},
          {"wait_seconds", now.wait_seconds},
          {"bytes", static_cast<double>(now.bytes)},
          {"sent_bytes", static_cast<double>(now.sent_bytes)},
          {"plan_generation", static_cast<double>(now.plan_generation)}};
}

void UserModel::Detach() {
  if (owned_ != nullptr) statistics_ = port().statistics();
  owned_.reset();
}

}  // namespace pelton::torch_bindings
