#include "torch_bindings/csrc/wrapped_model.h"

#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "core/base/fork.h"
#include "core/base/status.h"
#include "torch_bindings/csrc/shared_allocator.h"
#include "torch_bindings/csrc/slot.h"
#include "torch_bindings/csrc/status_error.h"
#include "torch_bindings/csrc/tensor_slots.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {
namespace {

bool Sums(const ModelOptions& options) {
  const auto average = options.algorithm_options.find("average");
  return average != options.algorithm_options.end() && average->second == "false";
}

absl::Status Consumed(const std::string& parameter, const std::string& model, const char* what) {
  return absl::FailedPreconditionError(absl::StrCat(
      "parameter '", parameter, "' of model '", model, "': a hook of the backward pass ", what,
      " before the ranks' gradients were added up (an optimizer that steps within backward, such "
      "as "
      "in register_post_accumulate_grad_hook or _apply_optimizer_in_backward?); step after "
      "backward() has returned"));
}

absl::Status Repeated(const std::string& parameter, const std::string& model) {
  return absl::AlreadyExistsError(absl::StrCat(
      "parameter '", parameter, "' of model '", model,
      "': a second gradient of it came in one round, which the first round did not have (a layer "
      "that re-entrant checkpointing runs again?); call checkpoint with use_reentrant=False"));
}

// What is planned: the tensors that are communicated, under their parameters' names.
NamedTensors TensorsOf(const WrappedModel::Contents& contents) {
  NamedTensors tensors = contents.parameters;
  for (size_t i = 0; i < contents.moments.size(); ++i) {
    tensors[i].second = contents.moments[i].tensor;
  }
  return tensors;
}

// Whether the backward that runs on this thread accumulates gradients at all of its leaves:
// torch.autograd.grad does at none, backward(inputs=...) at some.
bool AccumulatesEverywhere() {
  const auto* const chosen = torch::autograd::get_current_graph_task_exec_info();
  return chosen == nullptr || chosen->empty();
}

absl::Status CheckMoments(bool takes_moments, const std::string& name,
                          const WrappedModel::Contents& contents) {
  if (!takes_moments) {
    if (contents.moments.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm ", name, " does not communicate momenta"));
  }
  if (contents.moments.size() != contents.parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("moments: ", contents.moments.size(),
                                                   " of them for ", contents.parameters.size(),
                                                   " parameters"));
  }
  for (size_t i = 0; i < contents.moments.size(); ++i) {
    const auto& [parameter, tensor] = contents.parameters[i];
    if (contents.moments[i].tensor.sizes() == tensor.sizes()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("moments: that of '", parameter, "' does not have its shape"));
  }
  return absl::OkStatus();
}

// Whether the rounds begin and end on the trainer's thread, whose stream orders what the buckets
// hold, and leave nothing in them for a step to come.
bool StaysOnDevice(const Schedule& schedule, bool on_call) {
  return on_call || (schedule.trigger != TriggerKind::kTimer && schedule.delay == 0);
}

}  // namespace

// While it lives, gradients are born in shared memory, where they need not be copied: all of them
// where the backward comes by the model's outputs, else those after the first.
// Threads: the backward's, the last of which destroys it. Owns: nothing.
struct WrappedModel::Backward {
  explicit Backward(std::weak_ptr<WrappedModel> of) : model(std::move(of)) {
    SharedAllocation::Begin();
  }
  ~Backward() {
    SharedAllocation::End();
    if (has_ended) return;
    if (std::shared_ptr<WrappedModel> self = model.lock()) self->OnBrokenBackward();
  }
  const std::weak_ptr<WrappedModel> model;
  bool takes_part = false;  // although no gradient may come
  bool has_ended = false;
};

WrappedModel::WrappedModel(std::shared_ptr<Backend> backend, const PortOptions& options)
    : options_(options.model),
      sums_(Sums(options_)),
      owned_(new Owned, DeleteUnlessForked<Owned>()) {
  owned_->backend = std::move(backend);
}

WrappedModel::~WrappedModel() { Detach(absl::ZeroDuration()); }

absl::StatusOr<std::shared_ptr<WrappedModel>> WrappedModel::Create(std::shared_ptr<Backend> backend,
                                                                   PortOptions options,
                                                                   const Contents& contents) {
  std::shared_ptr<WrappedModel> model(new WrappedModel(std::move(backend), options));
  RETURN_IF_ERROR(model->Install(std::move(options), contents));
  return model;
}

absl::Status WrappedModel::Install(PortOptions options, const Contents& contents) {
  ASSIGN_OR_RETURN(std::unique_ptr<Algorithm> algorithm,
                   MakeAlgorithm(options_.algorithm, options_.algorithm_options));
  when_ready_ = !options.on_call && algorithm->schedule().trigger == TriggerKind::kWhenReady;
  const bool takes_moments = when_ready_ && algorithm->schedule().source == Source::kMomenta;
  RETURN_IF_ERROR(CheckMoments(takes_moments, options_.algorithm, contents));
  const NamedTensors tensors = TensorsOf(contents);
  // SpecsOf refuses a model without tensors.
  const at::Device device = tensors.empty() ? at::kCPU : tensors.front().second.device();
  // A machine without a GPU need not look for GPU kernels.
  const bool stays = IsGpu(device) && StaysOnDevice(algorithm->schedule(), options.on_call) &&
                     algorithm->TakesDeviceMemory();
  const BucketsAt buckets = stays ? BucketsAt::kTensors : BucketsAt::kHost;
  ASSIGN_OR_RETURN(std::vector<TensorSpec> specs, SpecsOf(tensors, buckets));
  if (buckets == BucketsAt::kTensors) {
    device_ = device;
    options.model.callers_stream = CurrentStreamOf(device);
  }
  MakeSlots(contents);
  if (IsGpu(device) && algorithm->schedule().trigger == TriggerKind::kTimer && !options.on_call) {
    trainers_stream_.emplace(device);
  }
  options.model.viewer = &owned_->profiled;
  ASSIGN_OR_RETURN(owned_->port, ModelPort::Create(*owned_->backend, std::move(options),
                                                   std::move(algorithm), std::move(specs), *this));
  is_installed_ = true;
  for (size_t i = 0; when_ready_ && i < slots_.size(); ++i) {
    slots_[i]->Hook([this, i](bool arrived) { OnGradient(i, arrived); });
  }
  return absl::OkStatus();
}

void WrappedModel::MakeSlots(const Contents& contents) {
  for (size_t i = 0; i < contents.parameters.size(); ++i) {
    const auto& [name, parameter] = contents.parameters[i];
    if (!when_ready_) {
      slots_.push_back(std::make_unique<WeightSlot>(name, parameter));
      continue;
    }
    if (contents.moments.empty()) {
      slots_.push_back(std::make_unique<GradientSlot>(name, parameter));
      continue;
    }
    const Moment& moment = contents.moments[i];
    auto slot = std::make_unique<MomentumSlot>(name, parameter, moment.tensor, moment.beta);
    momenta_.push_back(slot.get());
    slots_.push_back(std::move(slot));
  }
}

std::optional<c10::Stream> WrappedModel::TensorsStream() const {
  return trainers_stream_.has_value() ? std::optional(trainers_stream_->Get()) : std::nullopt;
}

absl::Status WrappedModel::SetBetas(const std::vector<double>& betas) {
  if (betas.size() != momenta_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("betas: ", betas.size(), " of them for ", momenta_.size(), " momenta"));
  }
  for (size_t i = 0; i < betas.size(); ++i) momenta_[i]->set_beta(betas[i]);
  return absl::OkStatus();
}

void WrappedModel::Place(SlotId slot, std::byte* memory) {
  at(slot).Bind(memory, device_, owned_);
  if (is_installed_) at(slot).Adopt();
}

// What no hook marked in this backward counts as zeros on this rank, unless it is a gradient from
// earlier local backwards, which still has to be communicated.
absl::StatusOr<TensorPort::Brought> WrappedModel::Bring(SlotId slot, bool is_used) {
  const c10::OptionalStreamGuard on_trainers_stream(TensorsStream());
  Slot& own = at(slot);
  if (when_ready_ && !is_used && !(own.is_dirty && own.has_gradient())) {
    ASSIGN_OR_RETURN(void* data, own.PlaceUnused());
    return Brought{data, false};
  }
  RETURN_IF_ERROR(CheckNoSum(own));
  ASSIGN_OR_RETURN(void* data, own.Place());
  return Brought{data};
}

// With a mean the gradient may be added to and averaged again, because the mean of parts that are
// equal on all ranks is that part. A sum would count that part once for each rank.
absl::Status WrappedModel::CheckNoSum(const Slot& slot) const {
  if (!sums_ || !slot.HoldsResult()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("parameter '", slot.name(), "' of model '", options_.name,
                   "': with average=False a backward cannot add to a gradient that is summed over "
                   "the ranks already; call zero_grad(set_to_none=True) before it, or no_sync() "
                   "around the earlier one"));
}

absl::Status WrappedModel::BeginMerge(absl::Time) {
  for (const auto& slot : slots_) RETURN_IF_ERROR(slot->CheckMerge());
  return absl::OkStatus();
}

void WrappedModel::Merge(SlotId slot, const CommitRule& rule, bool used_by_any) {
  const c10::OptionalStreamGuard on_trainers_stream(TensorsStream());
  at(slot).Merge(rule, used_by_any);
}

void WrappedModel::Release(SlotId slot) { at(slot).Release(); }

// Some of the tensors are looked at.
uint64_t WrappedModel::Fingerprint() const {
  constexpr size_t kLookedAt = 8;
  const size_t stride = std::max<size_t>(1, slots_.size() / kLookedAt);
  uint64_t print = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    print = absl::HashOf(print, slots_[i]->Fingerprint(i % stride == 0));
  }
  return print;
}

absl::StatusOr<bool> WrappedModel::Post(TrainingEvent event) {
  if (trainers_stream_.has_value()) trainers_stream_->Note();
  event.is_synchronized = synchronized_;
  event.is_recomputed = torch::autograd::get_current_graph_task_id() != -1;
  if (when_ready_ && event.kind == EventKind::kBackwardEnds) return false;
  if (when_ready_ && event.kind == EventKind::kBackwardBegins) {
    RETURN_IF_ERROR(CheckRound());
    return false;
  }
  if (when_ready_ && event.kind == EventKind::kBeforeStep) RETURN_IF_ERROR(FinishRound());
  // What goes on beside training may outlast the profiler.
  const Schedule& schedule = port().schedule();
  const bool shows = !when_ready_ && schedule.delay == 0 && schedule.trigger != TriggerKind::kTimer;
  if (shows) owned_->profiled.Follow();
  const absl::Status status = port().Post(event);
  if (shows && !port().is_open()) owned_->profiled.Leave();
  RETURN_IF_ERROR(status);
  return port().trigger().completed_step();
}

absl::Status WrappedModel::CheckRound() const {
  if (!when_ready_) return port().failure();
  RETURN_IF_ERROR(CheckNotForkedChild());
  RETURN_IF_ERROR(failure_);
  return round_is_open_ && owned_ != nullptr ? BrokenBackward() : absl::OkStatus();
}

std::vector<std::string> WrappedModel::Changes() const {
  std::vector<std::string> changes;
  for (const auto& slot : slots_) {
    if (std::string change = slot->Change(); !change.empty()) {
      changes.push_back(absl::StrCat(slot->name(), ": ", change));
    }
  }
  return changes;
}

void WrappedModel::OpenRound() {
  round_is_open_ = true;
  owned_->profiled.Follow();
  TrainingEvent begins{.kind = EventKind::kBackwardBegins};
  begins.is_evaluation = mode_ == RoundMode::kEvaluation;
  port().Post(begins).IgnoreError();  // it cannot fail
}

// Runs on autograd's thread after each accumulation; the trainer waits in backward meanwhile.
void WrappedModel::OnGradient(size_t index, bool arrived) {
  if (!synchronized_) {
    slots_[index]->is_dirty = true;
    return;
  }
  if (!arrived) return;  // an undefined gradient: the end of the round finds it unused
  ThrowIfError(failure_);
  if (backward_.expired()) JoinBackward();
  if (!round_is_open_) OpenRound();
  if (absl::Status status = TakeGradient(index); !status.ok()) ThrowStatus(Fail(status));
}

// While it is not known which slots a backward accumulates into several times, and for those that
// it does, the tensor is not the bucket's before the outermost backward ends.
absl::Status WrappedModel::TakeGradient(size_t index) {
  Slot& slot = *slots_[index];
  RETURN_IF_ERROR(CheckGradient(slot));
  slot.RememberVersion();
  const bool is_second = std::exchange(slot.has_come, true);
  if (has_learned_ && !slot.is_repeated) {
    return is_second ? Repeated(slot.name(), options_.name) : MarkReady(index);
  }
  slot.is_repeated |= is_second;
  slot.is_dirty = true;
  if (!is_second) deferred_.push_back(index);
  return absl::OkStatus();
}

// A hook of the user's that runs within the accumulation, before this one, may look at the gradient
// but neither use it up nor step by it: it is this rank's own.
absl::Status WrappedModel::CheckGradient(const Slot& slot) const {
  if (!slot.has_gradient()) return Consumed(slot.name(), options_.name, "used up its gradient");
  if (!slot.has_hooks_of_users() || !slot.WasWritten()) return absl::OkStatus();
  return Consumed(slot.name(), options_.name, "changed the parameter");
}

absl::Status WrappedModel::MarkReady(size_t index) {
  TrainingEvent ready{.kind = EventKind::kTensorReady};
  ready.slot = static_cast<int32_t>(index);
  return port().Post(ready);
}

void WrappedModel::WatchOutputs(const std::vector<at::Tensor>& outputs, RoundMode mode) {
  if (!when_ready_) return;
  // A forward within a backward (checkpointing recomputes the model): that backward is the one.
  const bool is_in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (is_in_backward) return OnOutputReached(mode);
  mode_ = mode;  // of a backward that comes by none of the outputs
  for (const at::Tensor& output : outputs) {
    output.register_hook([weak = weak_from_this(), mode](const at::Tensor&) {
      if (std::shared_ptr<WrappedModel> self = weak.lock()) self->OnOutputReached(mode);
    });
  }
}

void WrappedModel::OnOutputReached(RoundMode mode) {
  if (owned_ == nullptr || !synchronized_ || !TakesPart()) return;
  if (backward_.expired() && !round_is_open_) mode_ = mode;
  JoinBackward()->takes_part = true;
}

// Not torch.autograd.grad, nor a backward for other tensors alone.
bool WrappedModel::TakesPart() const {
  const bool everywhere = AccumulatesEverywhere();
  return std::any_of(slots_.begin(), slots_.end(), [everywhere](const auto& slot) {
    return slot->requires_grad() && (everywhere || slot->IsWanted());
  });
}

// The backward that is running owns the callback: should it fail, the token goes with it.
std::shared_ptr<WrappedModel::Backward> WrappedModel::JoinBackward() {
  if (std::shared_ptr<Backward> running = backward_.lock()) return running;
  const auto token = std::make_shared<Backward>(weak_from_this());
  backward_ = token;
  if (!round_is_open_) {
    for (const auto& slot : slots_) slot->RememberVersion();
  }
  for (EndStage stage : {EndStage::kLaunch, EndStage::kWait, EndStage::kAdopt}) {
    QueueAtEnd(stage, [token, stage] {
      if (std::shared_ptr<WrappedModel> self = token->model.lock()) self->OnEnd(*token, stage);
    });
  }
  return token;
}

// The engine calls it at the end of the backward in which it was queued: the one that reached the
// model's outputs. Where none did (the loss is made of something else than outputs), it is the one
// of the first gradient, which under re-entrant checkpointing may be an inner one, seen by the
// outer node that is still being evaluated: then the round goes on, unless no tensor is left that
// it could wait for.
void WrappedModel::OnEnd(Backward& backward, EndStage stage) {
  if (stage == EndStage::kLaunch) {
    backward_.reset();
    backward.has_ended = !CompletesRound(backward.takes_part);
  }
  if (backward.has_ended) return;
  backward.has_ended = stage == EndStage::kAdopt;
  ThrowIfError(Settled(stage == EndStage::kLaunch ? LaunchRest()
                       : stage == EndStage::kWait ? AwaitRound()
                                                  : CloseRound()));
}

bool WrappedModel::CompletesRound(bool takes_part) {
  if (owned_ == nullptr) return false;
  if (takes_part && !round_is_open_) OpenRound();
  if (!round_is_open_) return false;
  const bool is_nested = torch::autograd::get_current_node() != nullptr;
  return !is_nested || takes_part || port().UnmarkedSlots().size() <= deferred_.size();
}

// An exception has ended a backward. The peers are told, because they have this rank's part of some
// buckets and would wait for the others.
void WrappedModel::OnBrokenBackward() {
  if (round_is_open_ && owned_ != nullptr && failure_.ok()) port().Abort(BrokenBackward());
}

absl::Status WrappedModel::BrokenBackward() const {
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", owned_->backend->rank().value(), ": the last backward of model '", options_.name,
      "' ended in the middle of its round, perhaps by an exception. The other ranks have a part of "
      "its gradients, so that no rank can go on; mend what ended the backward on this rank, and "
      "start the job again from its last checkpoint"));
}

absl::Status WrappedModel::FinishRound() {
  if (!when_ready_) return port().Wait();
  if (!round_is_open_) return failure_;
  RETURN_IF_ERROR(Settled(LaunchRest()));
  RETURN_IF_ERROR(Settled(AwaitRound()));
  return Settled(CloseRound());
}

absl::Status WrappedModel::Settled(absl::Status status) {
  return status.ok() ? status : Fail(std::move(status));
}

absl::Status WrappedModel::Fail(absl::Status status) {
  round_is_open_ = false;
  if (owned_ != nullptr) owned_->profiled.Leave();
  if (!failure_.ok()) return status;
  failure_ = status;
  if (owned_ != nullptr) port().Abort(status);
  return status;
}

// An optimizer that steps in a hook which runs after this model's leaves its mark on the parameter.
absl::Status WrappedModel::CheckUnstepped() {
  for (const auto& slot : slots_) {
    if (std::exchange(slot->has_come, false) && slot->WasWritten()) {
      return Consumed(slot->name(), options_.name, "changed the parameter");
    }
  }
  return absl::OkStatus();
}

absl::Status WrappedModel::LaunchRest() {
  RETURN_IF_ERROR(CheckUnstepped());
  for (size_t i : std::exchange(deferred_, {})) RETURN_IF_ERROR(MarkReady(i));  // as they came
  return port().Post({.kind = EventKind::kBackwardEnds});
}

absl::Status WrappedModel::AwaitRound() {
  if (owned_ == nullptr || !round_is_open_) return failure_;
  absl::AnyInvocable<void()> end_range;
  if (IsProfiled()) {
    end_range = BeginProfilerRange(absl::StrCat("pelton:wait for the round of ", options_.name));
  }
  const absl::Status status = port().Wait();
  if (end_range != nullptr) end_range();
  owned_->profiled.Leave();
  RETURN_IF_ERROR(status);
  has_learned_ = true;
  return absl::OkStatus();
}

absl::Status WrappedModel::CloseRound() {
  if (owned_ == nullptr || !round_is_open_) return failure_;
  RETURN_IF_ERROR(port().AdoptOrder());
  round_is_open_ = false;
  return absl::OkStatus();
}

void WrappedModel::Detach(absl::Duration timeout) {
  // Gradients that a user holds on to lie in the port's memory; of other tensors it has copies, and
  // may be at them.
  if (!when_ready_ && owned_ != nullptr && owned_->port != nullptr) port().Detach(timeout);
  for (const auto& slot : slots_) {
    slot->Unhook();
    slot->Release();
  }
  // A graph of before may still be run: nothing of it is a round's any more.
  round_is_open_ = false;
  backward_.reset();
  deferred_.clear();
  owned_.reset();
}

}  // namespace pelton::torch_bindings
