#include "torch_bindings/module/parallel_module.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "algorithms/algorithm.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/status.h"
#include "torch_bindings/csrc/status_error.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton {
namespace {

using torch_bindings::NamedTensors;

std::string Describe(const NamedTensors& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors) {
    absl::StrAppend(&text, name, " ", c10::toString(tensor.scalar_type()), " [",
                    absl::StrJoin(tensor.sizes(), ", "), "]\n");
  }
  return text;
}

// The first line that one text has and the other has not, or has elsewhere.
std::string FirstDifference(const std::string& mine, const std::string& theirs) {
  const std::vector<std::string> my_lines = absl::StrSplit(mine, '\n');
  const std::vector<std::string> their_lines = absl::StrSplit(theirs, '\n');
  size_t i = 0;
  while (i < my_lines.size() && i < their_lines.size() && my_lines[i] == their_lines[i]) ++i;
  const auto line = [i](const std::vector<std::string>& lines) {
    return i < lines.size() && !lines[i].empty() ? lines[i] : "nothing more";
  };
  return absl::StrCat(line(my_lines), ", where rank 0 has ", line(their_lines));
}

absl::StatusOr<std::string> BroadcastText(Communicator& communicator, std::string text,
                                          absl::Time deadline) {
  int64_t size = static_cast<int64_t>(text.size());
  ASSIGN_OR_RETURN(Completion done, Broadcast(communicator, {&size, 1, DType::kInt64}, Rank(0)));
  RETURN_IF_ERROR(Await(communicator, done, deadline));
  text.resize(static_cast<size_t>(size));
  if (text.empty()) return text;
  ASSIGN_OR_RETURN(done,
                   Broadcast(communicator, {text.data(), text.size(), DType::kUInt8}, Rank(0)));
  RETURN_IF_ERROR(Await(communicator, done, deadline));
  return text;
}

absl::Status CheckAlike(Communicator& communicator, const std::string& module,
                        const NamedTensors& tensors, absl::Time deadline) {
  const std::string mine = Describe(tensors);
  ASSIGN_OR_RETURN(const std::string theirs, BroadcastText(communicator, mine, deadline));
  int64_t differs = mine == theirs ? 0 : 1;
  std::vector<int64_t> all(static_cast<size_t>(communicator.world_size().value()));
  ASSIGN_OR_RETURN(const Completion gathered, AllGather(communicator, {&differs, 1, DType::kInt64},
                                                        {all.data(), all.size(), DType::kInt64}));
  RETURN_IF_ERROR(Await(communicator, gathered, deadline));
  std::vector<size_t> others;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != 0) others.push_back(rank);
  }
  if (others.empty()) return absl::OkStatus();
  const std::string difference =
      differs == 0 ? "" : absl::StrCat(" (here: ", FirstDifference(mine, theirs), ")");
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", communicator.rank().value(), ": module '", module,
                   "': the parameters and buffers of rank(s) ", absl::StrJoin(others, ", "),
                   " are not those of rank 0", difference, "; make the same module on all ranks"));
}

absl::Status Take(Communicator& communicator, const at::Tensor& tensor, absl::Time deadline) {
  if (tensor.numel() == 0) return absl::OkStatus();
  const at::Tensor whole = tensor.detach().cpu().contiguous();
  ASSIGN_OR_RETURN(const Tensor flat, torch_bindings::Flat(whole, "tensor"));
  ASSIGN_OR_RETURN(const Completion completion, Broadcast(communicator, flat, Rank(0)));
  RETURN_IF_ERROR(Await(communicator, completion, deadline));
  const bool is_in_place = whole.is_alias_of(tensor);
  if (!is_in_place) tensor.detach().copy_(whole);
  return absl::OkStatus();
}

}  // namespace

absl::Status TakeFirstRanksState(Communicator& communicator, const std::string& module,
                                 const NamedTensors& tensors, absl::Time deadline) {
  RETURN_IF_ERROR(CheckAlike(communicator, module, tensors, deadline));
  for (const auto& [name, tensor] : tensors) {
    const absl::Status taken = Take(communicator, tensor, deadline);
    if (!taken.ok()) return Annotate(taken, absl::StrCat("module '", module, "': ", name));
  }
  return absl::OkStatus();
}

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
  if (model_ != nullptr) model_->Detach(std::min(timeout_, limits::kStopTimeout));
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
