#include "torch_bindings/csrc/c10d/process_group.h"

#include <pybind11/gil.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "backend/backend.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "torch_bindings/csrc/c10d/rules.h"
#include "torch_bindings/csrc/signals.h"
#include "torch_bindings/csrc/status_to_exception.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {

c10::intrusive_ptr<::c10d::Backend> ProcessGroup::Create(std::shared_ptr<pelton::Backend> backend,
                                                         const Group& group,
                                                         const GroupNames& names,
                                                         Milliseconds timeout, OnClosed on_closed) {
  struct Opened {
    std::shared_ptr<pelton::Backend> backend;
    std::unique_ptr<Communicator> communicator;  // must go before the backend
  };
  auto opened = std::make_shared<Opened>();
  opened->communicator = ValueOrThrow(backend->Open(group));
  opened->backend = std::move(backend);
  std::shared_ptr<Communicator> communicator(opened, opened->communicator.get());
  return c10::make_intrusive<ProcessGroup>(std::move(communicator),
                                           opened->backend->absences().standstill(), names, timeout,
                                           std::move(on_closed));
}

ProcessGroup::ProcessGroup(std::shared_ptr<Communicator> communicator, const Standstill& standstill,
                           GroupNames names, Milliseconds timeout, OnClosed on_closed)
    : GlooAlike(communicator->rank().value(), communicator->world_size().value(),
                c10::make_intrusive<GlooAlikeOptions>(names.backend, timeout)),
      names_(std::move(names)),
      standstill_(standstill),
      lane_(lane::Lane::Create(std::move(communicator), nullptr, &standstill)),
      on_closed_(std::move(on_closed)),
      monitored_barrier_(lane_, standstill_, getRank(), getSize()) {
  init();
}

ProcessGroup::~ProcessGroup() { lane_->Stop(); }

void ProcessGroup::abort() {
  if (IsForkedChild()) return;
  lane_->Abort(absl::AbortedError(
      absl::StrCat("rank ", getRank(), " called abort() on process group '", names_.group, "'")));
}

void ProcessGroup::shutdown() {
  if (IsForkedChild()) return;
  {
    // PyTorch may hold Python's lock here, and a callback on the queue's thread may wait for it.
    std::optional<pybind11::gil_scoped_release> unlocked;
    if (PyGILState_Check() != 0) unlocked.emplace();
    lane_->Stop();
  }
  if (OnClosed on_closed = std::exchange(on_closed_, nullptr)) on_closed();
}

at::Tensor ProcessGroup::allocateTensor(long size, at::TensorOptions options) {
  return EmptyShared({size}, c10::typeMetaToScalarType(options.dtype()));
}

Call ProcessGroup::Begin(const char* operation, Call::Use use) const {
  return Call(absl::StrCat(operation, " of process group '", names_.group, "'"), use);
}

ProcessGroup::Work ProcessGroup::Submit(Call call, const Submission& submission,
                                        const Tensors& inputs, QueuedWork::Results results) {
  ThrowIfError(CheckNotForkedChild());
  ThrowIfError(CheckNotInHandler());
  const bool is_unset = submission.timeout <= Milliseconds::zero();
  const Milliseconds timeout = is_unset ? options_->timeout : submission.timeout;
  lane::Job job = call.Take(absl::FromChrono(timeout));
  job.ended = BeginRecord(names_.backend, submission.type, inputs);
  const lane::JobHandle handle =
      submission.is_async ? lane_->Enqueue(std::move(job)) : lane_->Run(std::move(job));
  if (!submission.is_async) ThrowIfError(handle->status());
  return c10::make_intrusive<QueuedWork>(getRank(), submission.type, lane_, standstill_, handle,
                                         std::move(results));
}

void ProcessGroup::CheckList(const Call& call, const std::string& argument, const Tensors& tensors,
                             const at::Tensor& own) const {
  CheckSize(call, argument, tensors.size(), static_cast<size_t>(getSize()));
  const at::Tensor& place = tensors[static_cast<size_t>(getRank())];
  CheckWhole(call, {"this rank's entry of the list", place}, {"the tensor", own}, 1);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() == own.scalar_type()) continue;
    call.Refuse(absl::StrCat(argument, ": holds ", c10::toString(tensor.scalar_type()),
                             " beside a tensor of ", c10::toString(own.scalar_type())));
  }
}

ProcessGroup::Work ProcessGroup::barrier(const ::c10d::BarrierOptions& options) {
  Call call = Begin("barrier", Call::Use::kMoved);
  call.Launch([](Communicator& communicator) { return Barrier(communicator); });
  return Submit(std::move(call), {::c10d::OpType::BARRIER, options.timeout, options.asyncOp}, {},
                {});
}

void ProcessGroup::monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all_ranks) {
  ThrowIfError(CheckNotForkedChild());
  ThrowIfError(CheckNotInHandler());
  const bool is_unset = options.timeout == ::c10d::kUnsetTimeout;
  const Milliseconds timeout = is_unset ? options_->timeout : options.timeout;
  ThrowIfError(monitored_barrier_.Pass(
      {absl::StrCat("monitored_barrier of process group '", names_.group, "'"),
       absl::FromChrono(timeout), wait_all_ranks}));
}

}  // namespace pelton::torch_bindings
