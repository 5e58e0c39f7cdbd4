#include "torch_bindings/module/parallel_module.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "torch_bindings/csrc/status_error.h"
#include "torch_bindings/module/first_ranks_state.h"

namespace pelton {
namespace {

using torch_bindings::BackwardWatch;
using torch_bindings::NamedTensors;
using torch_bindings::StatusError;
using torch_bindings::WrappedModel;

NamedTensors TrainableOf(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& parameter : module.named_parameters()) {
    if (parameter.value().requires_grad()) tensors.emplace_back(parameter.key(), parameter.value());
  }
  return tensors;
}

NamedTensors StateOf(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& parameter : module.named_parameters()) {
    tensors.emplace_back(parameter.key(), parameter.value());
  }
  for (const auto& buffer : module.named_buffers()) {
    tensors.emplace_back(buffer.key(), buffer.value());
  }
  return tensors;
}

Group GroupOf(const ParallelModuleOptions& options, WorldSize world_size) {
  Group group = Group::World(world_size);
  if (!options.ranks.empty()) group.members = options.ranks;
  return group;
}

PortOptions PortOf(const ParallelModuleOptions& options, Group group, absl::Duration timeout) {
  PortOptions port;
  port.model.name = options.name;
  port.model.group = std::move(group);
  port.model.algorithm = options.algorithm;
  port.model.algorithm_options = options.algorithm_options;
  port.model.bucket_size_bytes = options.bucket_size_bytes;
  port.model.timeout = timeout;
  return port;
}

absl::StatusOr<Schedule> ScheduleOf(const ParallelModuleOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Algorithm> algorithm,
                   MakeAlgorithm(options.algorithm, options.algorithm_options));
  const Schedule schedule = algorithm->schedule();
  if (schedule.source != Source::kMomenta && schedule.trigger != TriggerKind::kOnCall) {
    return schedule;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("algorithm ", options.algorithm,
                   " belongs to an optimizer of its own, which exists in Python alone; take one "
                   "that communicates gradients or weights by itself"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParallelModule>> ParallelModule::Wrap(
    std::shared_ptr<Backend> backend, std::shared_ptr<torch::nn::Module> module,
    const ParallelModuleOptions& options) {
  const absl::Duration timeout = options.timeout > absl::ZeroDuration()
                                     ? options.timeout
                                     : backend->options().operation_timeout;
  std::unique_ptr<ParallelModule> parallel(new ParallelModule(std::move(module), timeout));
  RETURN_IF_ERROR(parallel->Install(std::move(backend), options));
  return parallel;
}

ParallelModule::~ParallelModule() {
  if (watch_ != nullptr) watch_->Detach();
  if (model_ != nullptr) model_->Detach(timeout_);
}

absl::Status ParallelModule::Install(std::shared_ptr<Backend> backend,
                                     const ParallelModuleOptions& options) {
  name_ = options.name;
  parameters_ = TrainableOf(*module_);
  ASSIGN_OR_RETURN(const Schedule schedule, ScheduleOf(options));
  Group group = GroupOf(options, backend->world_size());
  {
    ASSIGN_OR_RETURN(const auto communicator, backend->Open(group));
    RETURN_IF_ERROR(TakeFirstRanksState(*communicator, name_, StateOf(*module_),
                                        Clock::Real().Now() + timeout_));
  }
  WatchBackwards();  // before the model's own hooks: it is to hear of a backward pass first
  ASSIGN_OR_RETURN(
      model_, WrappedModel::Create(std::move(backend), PortOf(options, std::move(group), timeout_),
                                   {.parameters = parameters_}));
  counts_steps_ = schedule.trigger == TriggerKind::kAfterStep;
  print_ = Fingerprint();
  return absl::OkStatus();
}

void ParallelModule::WatchBackwards() {
  std::vector<at::Tensor> watched;
  for (const auto& [name, tensor] : parameters_) watched.push_back(tensor);
  const auto post = [this](EventKind kind, bool may_go_on) {
    torch_bindings::ThrowIfError(model_->Post({.kind = kind, .may_go_on = may_go_on}).status());
  };
  watch_ = BackwardWatch::Create(
      watched, {.began = [post] { post(EventKind::kBackwardBegins, false); },
                .ended = [post](bool may_go_on) { post(EventKind::kBackwardEnds, may_go_on); }});
}

absl::StatusOr<at::Tensor> ParallelModule::Forward(const std::function<at::Tensor()>& forward) {
  if (!at::GradMode::is_enabled()) return forward();
  RETURN_IF_ERROR(model_->CheckRound());
  RETURN_IF_ERROR(CheckSteps());
  watch_->Settle();
  const bool trains = module_->is_training();
  RETURN_IF_ERROR(Post(trains ? EventKind::kForwardBegins : EventKind::kEvaluationBegins));
  print_ = Fingerprint();
  at::Tensor output = forward();
  if (output.grad_fn() == nullptr) return output;
  model_->WatchOutputs({output}, trains ? RoundMode::kTraining : RoundMode::kEvaluation);
  watch_->WatchOutputs({output});
  return output;
}

absl::Status ParallelModule::Backward(const at::Tensor& loss) {
  try {
    loss.backward();
  } catch (const StatusError& error) {
    return error.status();
  }
  return absl::OkStatus();
}

absl::Status ParallelModule::Post(EventKind kind, const torch::optim::Optimizer* optimizer) {
  return model_->Post({.kind = kind, .optimizer = reinterpret_cast<uintptr_t>(optimizer)}).status();
}

absl::Status ParallelModule::Step(torch::optim::Optimizer& optimizer) {
  watch_->Settle();
  RETURN_IF_ERROR(Post(EventKind::kBeforeStep, &optimizer));
  optimizer.step();
  has_stepped_ = true;
  return Post(EventKind::kAfterStep, &optimizer);
}

uint64_t ParallelModule::Fingerprint() const { return counts_steps_ ? model_->Fingerprint() : 0; }

// An algorithm that goes by steps does not see a plain optimizer.step(), and the ranks would drift
// apart without a word.
absl::Status ParallelModule::CheckSteps() {
  const bool has_stepped = std::exchange(has_stepped_, false);
  if (!counts_steps_ || has_stepped || Fingerprint() == print_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("module '", name_,
                   "': its parameters have changed since the last forward pass, but not by "
                   "ParallelModule::Step, "
                   "and the algorithm brings the ranks together by such steps alone; replace "
                   "optimizer.step() by "
                   "Step(optimizer) on all ranks"));
}

absl::Status ParallelModule::Stop() { return model_->port().Stop(timeout_); }

}  // namespace pelton
