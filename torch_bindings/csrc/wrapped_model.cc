#include "torch_bindings/csrc/wrapped_model.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "torch_bindings/csrc/devices.h"
#include "torch_bindings/csrc/gradient_slot.h"
#include "torch_bindings/csrc/shared_allocator.h"
#include "torch_bindings/csrc/status_to_exception.h"

namespace pelton::torch_bindings {
namespace {

bool Sums(const ModelOptions& options) {
  const auto average = options.algorithm_options.find("average");
  return average != options.algorithm_options.end() && average->second == "false";
}

// What is planned: the tensors that are communicated, under their parameters' names.
NamedTensors TensorsOf(const WrappedModel::Contents& contents) {
  NamedTensors tensors = contents.parameters;
  for (size_t i = 0; i < contents.moments.size(); ++i) {
    tensors[i].second = contents.moments[i].tensor;
  }
  return tensors;
}

absl::Status CheckMoments(const WrappedModel::Contents& contents) {
  if (contents.moments.size() != contents.parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("moments: ", contents.moments.size(),
                                                   " of them for ", contents.parameters.size(),
                                                   " parameters"));
  }
  for (size_t i = 0; i < contents.moments.size(); ++i) {
    const auto& [name, parameter] = contents.parameters[i];
    if (contents.moments[i].tensor.sizes() == parameter.sizes()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("moments: that of '", name, "' does not have its shape"));
  }
  return absl::OkStatus();
}

absl::Status CheckSubject(const Algorithm& algorithm, const std::string& name,
                          const WrappedModel::Contents& contents) {
  const Subject subject = algorithm.schedule().subject;
  if (subject == Subject::kMomenta) return CheckMoments(contents);
  if (subject == Subject::kGradients && contents.moments.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("algorithm ", name, " does not communicate ",
                   contents.moments.empty() ? "gradients" : "momenta"));
}

}  // namespace

WrappedModel::WrappedModel(std::shared_ptr<Backend> backend, ModelOptions options)
    : options_(std::move(options)),
      sums_(Sums(options_)),
      owned_(new Owned{std::move(backend), nullptr}) {}

WrappedModel::~WrappedModel() { Detach(); }

absl::StatusOr<std::shared_ptr<WrappedModel>> WrappedModel::Create(std::shared_ptr<Backend> backend,
                                                                   ModelOptions options,
                                                                   Contents contents) {
  options.first_round = Round(contents.state.rounds + 1);
  std::shared_ptr<WrappedModel> model(new WrappedModel(std::move(backend), std::move(options)));
  RETURN_IF_ERROR(model->Install(contents));
  return model;
}

absl::Status WrappedModel::Install(const Contents& contents) {
  ASSIGN_OR_RETURN(std::unique_ptr<Algorithm> algorithm,
                   MakeAlgorithm(options_.algorithm, options_.algorithm_options));
  RETURN_IF_ERROR(CheckSubject(*algorithm, options_.algorithm, contents));
  const NamedTensors tensors = TensorsOf(contents);
  const at::Device device = tensors.front().second.device();
  // Whoever has no GPU need not look for its kernels.
  const BucketsAt buckets =
      IsGpu(device) && algorithm->TakesDeviceMemory() && contents.moments.empty()
          ? BucketsAt::kTensors
          : BucketsAt::kHost;
  ASSIGN_OR_RETURN(std::vector<TensorSpec> specs, SpecsOf(tensors, buckets));
  ModelOptions options = options_;
  if (buckets == BucketsAt::kTensors) {
    device_ = device;
    options.callers_stream = CurrentStreamOf(device);
  }
  ASSIGN_OR_RETURN(owned_->model, Model::Create(*owned_->backend, options, std::move(algorithm),
                                                std::move(specs)));
  RETURN_IF_ERROR(Restore(contents.state, rounds(), Clock::Real().Now() + options_.timeout));
  order_is_adopted_ = !contents.state.order.empty();
  MakeSlots(contents);
  BindSlots();
  for (MomentumSlot* slot : momenta_) slot->Adopt();
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i]->Hook([this, i] { OnGradient(i); });
  }
  return absl::OkStatus();
}

void WrappedModel::MakeSlots(const Contents& contents) {
  for (size_t i = 0; i < contents.parameters.size(); ++i) {
    const auto& [name, parameter] = contents.parameters[i];
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

absl::Status WrappedModel::SetBetas(const std::vector<double>& betas) {
  if (betas.size() != momenta_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("betas: ", betas.size(), " of them for ", momenta_.size(), " momenta"));
  }
  for (size_t i = 0; i < betas.size(); ++i) momenta_[i]->set_beta(betas[i]);
  return absl::OkStatus();
}

void WrappedModel::BindSlots() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const SlotId slot(static_cast<int32_t>(i));
    const bool is_segment = rounds().plan().slot(slot).standalone;
    slots_[i]->Bind(is_segment ? nullptr : rounds().DataOf(slot), device_, owned_);
  }
}

absl::Status WrappedModel::CheckRound() const {
  RETURN_IF_ERROR(failure_);
  if (!round_is_open_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", owned_->backend->rank().value(), ": the last backward of model '", options_.name,
      "' ended in the middle of its round (an exception?); its ranks cannot be brought together "
      "again"));
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

// Gradients of the rest of this backward are born in shared memory, where they need not be copied.
void WrappedModel::OpenRound() {
  round_is_open_ = true;
  if (!SharedAllocation::enabled()) return;
  shares_allocations_ = true;
  SharedAllocation::Begin();
}

// Runs on autograd's thread after each accumulation; the trainer waits in backward meanwhile.
void WrappedModel::OnGradient(size_t index) {
  if (!synchronized_) {
    slots_[index]->is_dirty = true;
    return;
  }
  if (!slots_[index]->has_gradient())
    return;  // an undefined gradient: the end of the round finds it unused
  if (!round_is_open_) OpenRound();
  QueueEndOfBackward();
  ThrowIfError(MarkReady(index));
}

absl::Status WrappedModel::MarkReady(size_t index) {
  // A mean of a mean and what was added to it is what one process has; a sum of a sum is not.
  if (sums_ && slots_[index]->HoldsResult()) {
    return absl::FailedPreconditionError(
        absl::StrCat("parameter '", slots_[index]->name(), "' of model '", options_.name,
                     "': with average=False a backward cannot add to a gradient that is summed "
                     "over the ranks already; call "
                     "zero_grad(set_to_none=True) before it, or no_sync() around the earlier one"));
  }
  ASSIGN_OR_RETURN(void* data, slots_[index]->Place());
  const SlotId slot(static_cast<int32_t>(index));
  return slots_[index]->is_segment() ? rounds().MarkReady(slot, data) : rounds().MarkReady(slot);
}

absl::Status WrappedModel::MarkUnused(size_t index) {
  ASSIGN_OR_RETURN(void* data, slots_[index]->PlaceUnused());
  const SlotId slot(static_cast<int32_t>(index));
  return slots_[index]->is_segment() ? rounds().MarkUnused(slot, data) : rounds().MarkUnused(slot);
}

void WrappedModel::WatchOutputs(const std::vector<at::Tensor>& outputs) {
  // A forward within a backward (checkpointing recomputes the model): that backward is the one.
  const bool is_in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (is_in_backward) return OnOutputReached();
  for (const at::Tensor& output : outputs) {
    output.register_hook([weak = weak_from_this()](const at::Tensor&) {
      if (std::shared_ptr<WrappedModel> self = weak.lock()) self->OnOutputReached();
    });
  }
}

void WrappedModel::OnOutputReached() {
  if (synchronized_) QueueEndOfBackward();
}

// The backward that is running owns the callback: should it fail, the token goes with it.
void WrappedModel::QueueEndOfBackward() {
  if (!queued_.expired()) return;
  const auto token = std::make_shared<bool>(true);
  queued_ = token;
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this(), token] {
    if (std::shared_ptr<WrappedModel> self = weak.lock()) self->OnEndOfBackward();
  });
}

// The engine calls it at the end of the backward in which it was queued: the one that reached the
// model's outputs. Where none did (the loss is made of something else than outputs), it is the one
// of the first gradient, which under re-entrant checkpointing may be an inner one, seen by the
// outer node that is still being evaluated: then the round goes on, unless no tensor is left that
// it could wait for.
void WrappedModel::OnEndOfBackward() {
  queued_.reset();
  if (!round_is_open_) return;
  const bool is_nested = torch::autograd::get_current_node() != nullptr;
  if (is_nested && !rounds().UnmarkedSlots().empty()) return;
  ThrowIfError(FinishRound());
}

absl::Status WrappedModel::FinishRound() {
  if (!round_is_open_) return failure_;
  round_is_open_ = false;
  absl::Status status = CloseRound();
  if (shares_allocations_) {
    shares_allocations_ = false;
    SharedAllocation::End();
  }
  if (!status.ok()) failure_ = status;
  return status;
}

// What no hook marked in this backward: a gradient from earlier local backwards still has to be
// communicated, anything else counts as zeros on this rank.
absl::Status WrappedModel::MarkRest() {
  for (SlotId slot : rounds().UnmarkedSlots()) {
    const auto i = static_cast<size_t>(slot.value());
    const bool is_pending = slots_[i]->is_dirty && slots_[i]->has_gradient();
    RETURN_IF_ERROR(is_pending ? MarkReady(i) : MarkUnused(i));
  }
  return absl::OkStatus();
}

absl::Status WrappedModel::CloseRound() {
  RETURN_IF_ERROR(MarkRest());
  RETURN_IF_ERROR(rounds().EndRound());
  const absl::Time start = Clock::Real().Now();
  absl::Status status = rounds().WaitRound(start + options_.timeout);
  waited_ += Clock::Real().Now() - start;
  RETURN_IF_ERROR(status);
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i]->Collect(rounds().ResultOf(SlotId(static_cast<int32_t>(i))).used_by_any);
  }
  ++round_count_;
  return std::exchange(order_is_adopted_, true) ? absl::OkStatus() : AdoptReadyOrder();
}

// The first round shows in which order gradients come; buckets follow rank 0's from then on.
absl::Status WrappedModel::AdoptReadyOrder() {
  const absl::Time deadline = Clock::Real().Now() + options_.timeout;
  ASSIGN_OR_RETURN(const std::vector<SlotId> order, rounds().AgreeOnOrder(deadline));
  for (const auto& slot : slots_) slot->Release();
  RETURN_IF_ERROR(rounds().Replan(order, deadline));
  BindSlots();
  for (const auto& slot : slots_) slot->Adopt();
  return absl::OkStatus();
}

std::vector<std::vector<std::string>> WrappedModel::Buckets() const {
  std::vector<std::vector<std::string>> buckets;
  if (owned_ == nullptr) return buckets;
  for (const BucketLayout& bucket : rounds().plan().buckets()) {
    std::vector<std::string>& names = buckets.emplace_back();
    for (SlotId slot : bucket.slots) names.push_back(slots_[slot.value()]->name());
  }
  return buckets;
}

absl::StatusOr<ModelState> WrappedModel::State() const {
  RETURN_IF_ERROR(CheckRound());
  return StateOf(rounds());
}

WrappedModel::Statistics WrappedModel::statistics() const {
  Statistics statistics;
  statistics.rounds = round_count_;
  statistics.wait_seconds = absl::ToDoubleSeconds(waited_);
  for (const auto& slot : slots_) {
    statistics.bytes += slot->size_bytes() * round_count_;
    statistics.copied_bytes += slot->copied_bytes();
  }
  if (owned_ != nullptr) {
    statistics.plan_generation = rounds().plan().generation().value();
    statistics.sent_bytes = owned_->model->sent_bytes();
  }
  return statistics;
}

void WrappedModel::Detach() {
  for (const auto& slot : slots_) {
    slot->Unhook();
    slot->Release();
  }
  if (shares_allocations_) SharedAllocation::End();
  shares_allocations_ = false;
  owned_.reset();
}

}  // namespace pelton::torch_bindings
