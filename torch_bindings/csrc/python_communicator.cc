#include "torch_bindings/csrc/python_communicator.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/all_to_all_v.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/reduction/reducible.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"
#include "torch_bindings/csrc/devices.h"
#include "torch_bindings/csrc/gpu_communicator.h"
#include "torch_bindings/csrc/signals.h"
#include "torch_bindings/csrc/status_to_exception.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {
namespace {

absl::StatusOr<ReduceOp> ToReduceOp(int code) {
  switch (code) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 7:
    case 8:
    case 9:
    case 10:
      return static_cast<ReduceOp>(code);
    default:
      return absl::InvalidArgumentError(absl::StrCat("op: ", code, " is no reduction"));
  }
}

absl::StatusOr<std::vector<TensorPart>> ToParts(const std::vector<int64_t>& counts,
                                                const std::vector<int64_t>& offsets,
                                                absl::string_view side) {
  if (counts.size() != offsets.size()) {
    return absl::InvalidArgumentError(absl::StrCat(side, "_counts has ", counts.size(),
                                                   " entries, ", side, "_displs ", offsets.size()));
  }
  std::vector<TensorPart> parts;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0 || offsets[i] < 0) {
      return absl::InvalidArgumentError(absl::StrCat(side, "_counts[", i, "] is ", counts[i], ", ",
                                                     side, "_displs[", i, "] ", offsets[i],
                                                     ": must not be negative"));
    }
    parts.push_back({static_cast<uint64_t>(offsets[i]), static_cast<uint64_t>(counts[i])});
  }
  return parts;
}

}  // namespace

PythonCommunicator::PythonCommunicator(std::shared_ptr<Backend> backend, Group group,
                                       std::string name)
    : backend_(std::move(backend)),
      group_(std::move(group)),
      name_(std::move(name)),
      rank_(group_.RankOf(backend_->rank()).value_or(Rank(-1)).value()),
      world_size_(group_.size().value()) {
  MutexLock lock(&mutex_);
  ThrowIfError(CommunicatorOf(at::kCPU).status());
}

absl::StatusOr<std::unique_ptr<Communicator>> PythonCommunicator::OpenOn(
    const at::Device& device) const {
  ASSIGN_OR_RETURN(const Device where, ToDevice(device, "the tensor"));
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> opened, backend_->Open(group_, where));
  if (where.kind == DeviceKind::kHost) return opened;
  return std::make_unique<GpuCommunicator>(std::move(opened), CurrentStreamOf(device), where.index);
}

absl::StatusOr<Communicator*> PythonCommunicator::CommunicatorOf(const at::Device& device) {
  std::unique_ptr<Communicator>& communicator = communicators_[device];
  if (communicator != nullptr) return communicator.get();
  absl::StatusOr<std::unique_ptr<Communicator>> opened = OpenOn(device);
  if (!opened.ok()) {
    communicators_.erase(device);
    return opened.status();
  }
  communicator = *std::move(opened);
  MutexLock open_lock(&open_mutex_);
  open_.push_back(communicator.get());
  return communicator.get();
}

absl::StatusOr<Communicator*> PythonCommunicator::CommunicatorFor(Tensors tensors) {
  if (communicators_.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank_, ": the communicator's group was destroyed"));
  }
  std::optional<at::Device> device;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (device.has_value() && *device != tensor.device()) {
      return absl::InvalidArgumentError(absl::StrCat("its tensors are on ", device->str(), " and ",
                                                     tensor.device().str(), "; one is needed"));
    }
    device = tensor.device();
  }
  return CommunicatorOf(device.value_or(at::kCPU));
}

void PythonCommunicator::Close() {
  if (IsForkedChild()) return;
  ThrowIfError(CheckNotInHandler());
  MutexLock lock(&mutex_);
  {
    MutexLock open_lock(&open_mutex_);
    open_.clear();
  }
  communicators_.clear();
}

void PythonCommunicator::CheckReducible(at::ScalarType type, int op) {
  const DType dtype = ValueOrThrow(ToDType(type));
  ThrowIfError(pelton::CheckReducible(dtype, ValueOrThrow(ToReduceOp(op))));
}

template <typename Function>
void PythonCommunicator::Run(const char* what, Tensors tensors, Function call) {
  ThrowIfError(CheckNotForkedChild());
  ThrowIfError(CheckNotInHandler());
  absl::Status status;
  const CallName name(what, name_);
  {
    MutexLock lock(&mutex_);
    const absl::StatusOr<Communicator*> communicator = CommunicatorFor(tensors);
    status = communicator.status();
    if (status.ok()) {
      status = call(**communicator, Clock::Real().Now() + backend_->options().operation_timeout);
    }
  }
  if (!status.ok()) ThrowStatus(Annotate(status, name.ToString()));
}

template <typename LaunchFunction>
void PythonCommunicator::LaunchAndAwait(const char* what, Tensors tensors, LaunchFunction launch) {
  Run(what, tensors, [&](Communicator& communicator, absl::Time deadline) -> absl::Status {
    ASSIGN_OR_RETURN(const Completion completion, launch(communicator));
    return Await(communicator, completion, deadline);
  });
}

void PythonCommunicator::AllReduce(const at::Tensor& send, const at::Tensor& recv, int op) {
  LaunchAndAwait("allreduce", {send, recv},
                 [&](Communicator& communicator) -> absl::StatusOr<Completion> {
                   ASSIGN_OR_RETURN(const ReduceOp reduce_op, ToReduceOp(op));
                   ASSIGN_OR_RETURN(const Tensor source, FlatAnywhere(send, "send_tensor"));
                   ASSIGN_OR_RETURN(const Tensor target, FlatAnywhere(recv, "recv_tensor"));
                   return pelton::AllReduce(communicator, source, target, reduce_op);
                 });
}

void PythonCommunicator::Reduce(const at::Tensor& send, const at::Tensor& recv, int dst, int op) {
  LaunchAndAwait("reduce", {send, recv},
                 [&](Communicator& communicator) -> absl::StatusOr<Completion> {
                   ASSIGN_OR_RETURN(const ReduceOp reduce_op, ToReduceOp(op));
                   ASSIGN_OR_RETURN(const Tensor source, FlatAnywhere(send, "send_tensor"));
                   Tensor target = source;
                   if (dst == rank()) {
                     ASSIGN_OR_RETURN(target, FlatAnywhere(recv, "recv_tensor"));
                   }
                   return pelton::Reduce(communicator, source, target, reduce_op, Rank(dst));
                 });
}

void PythonCommunicator::ReduceScatter(const at::Tensor& send, const at::Tensor& recv, int op) {
  LaunchAndAwait("reduce_scatter", {send, recv},
                 [&](Communicator& communicator) -> absl::StatusOr<Completion> {
                   ASSIGN_OR_RETURN(const ReduceOp reduce_op, ToReduceOp(op));
                   ASSIGN_OR_RETURN(const Tensor source, FlatAnywhere(send, "send_tensor"));
                   ASSIGN_OR_RETURN(const Tensor target, FlatAnywhere(recv, "recv_tensor"));
                   return pelton::ReduceScatter(communicator, source, target, reduce_op);
                 });
}

void PythonCommunicator::AllGather(const at::Tensor& send, const at::Tensor& recv) {
  LaunchAndAwait("allgather", {send, recv},
                 [&](Communicator& communicator) -> absl::StatusOr<Completion> {
                   ASSIGN_OR_RETURN(const Tensor source, FlatAnywhere(send, "send_tensor"));
                   ASSIGN_OR_RETURN(const Tensor target, FlatAnywhere(recv, "recv_tensor"));
                   return pelton::AllGather(communicator, source, target);
                 });
}

void PythonCommunicator::Broadcast(const at::Tensor& tensor, int src) {
  LaunchAndAwait("broadcast", {tensor},
                 [&](Communicator& communicator) -> absl::StatusOr<Completion> {
                   ASSIGN_OR_RETURN(const Tensor flat, FlatAnywhere(tensor, "tensor"));
                   return pelton::Broadcast(communicator, flat, Rank(src));
                 });
}

void PythonCommunicator::Gather(const at::Tensor& send, const at::Tensor& recv, int dst) {
  LaunchAndAwait("gather", {send, recv},
                 [&](Communicator& communicator) -> absl::StatusOr<Completion> {
                   ASSIGN_OR_RETURN(const Tensor source, FlatAnywhere(send, "send_tensor"));
                   Tensor target = source;
                   if (dst == rank_) {
                     ASSIGN_OR_RETURN(target, FlatAnywhere(recv, "recv_tensor"));
                   }
                   return pelton::Gather(communicator, source, target, Rank(dst));
                 });
}

void PythonCommunicator::Scatter(const at::Tensor& send, const at::Tensor& recv, int src) {
  LaunchAndAwait("scatter", {send, recv},
                 [&](Communicator& communicator) -> absl::StatusOr<Completion> {
                   ASSIGN_OR_RETURN(const Tensor target, FlatAnywhere(recv, "recv_tensor"));
                   Tensor source = target;
                   if (src == rank_) {
                     ASSIGN_OR_RETURN(source, FlatAnywhere(send, "send_tensor"));
                   }
                   return pelton::Scatter(communicator, source, target, Rank(src));
                 });
}

void PythonCommunicator::AllToAll(const at::Tensor& send, const at::Tensor& recv) {
  LaunchAndAwait("alltoall", {send, recv},
                 [&](Communicator& communicator) -> absl::StatusOr<Completion> {
                   ASSIGN_OR_RETURN(const Tensor source, FlatAnywhere(send, "send_tensor"));
                   ASSIGN_OR_RETURN(const Tensor target, FlatAnywhere(recv, "recv_tensor"));
                   return pelton::AllToAll(communicator, source, target);
                 });
}

void PythonCommunicator::AllToAllV(const at::Tensor& send, const std::vector<int64_t>& send_counts,
                                   const std::vector<int64_t>& send_displs, const at::Tensor& recv,
                                   const std::vector<int64_t>& recv_counts,
                                   const std::vector<int64_t>& recv_displs) {
  Run("alltoall_v", {send, recv},
      [&](Communicator& communicator, absl::Time deadline) -> absl::Status {
        ASSIGN_OR_RETURN(const Tensor source, Flat(send, "send_tensor"));
        ASSIGN_OR_RETURN(const Tensor target, Flat(recv, "recv_tensor"));
        ASSIGN_OR_RETURN(const auto source_parts, ToParts(send_counts, send_displs, "send"));
        ASSIGN_OR_RETURN(const auto target_parts, ToParts(recv_counts, recv_displs, "recv"));
        return pelton::AllToAllV(communicator, source, source_parts, target, target_parts,
                                 deadline);
      });
}

void PythonCommunicator::Send(const at::Tensor& tensor, int dst, int tag) {
  LaunchAndAwait("send", {tensor}, [&](Communicator& communicator) -> absl::StatusOr<Completion> {
    ASSIGN_OR_RETURN(const Tensor source, FlatAnywhere(tensor, "tensor"));
    return pelton::Send(communicator, source, Rank(dst), tag);
  });
}

void PythonCommunicator::Recv(const at::Tensor& tensor, int src, int tag) {
  LaunchAndAwait("recv", {tensor}, [&](Communicator& communicator) -> absl::StatusOr<Completion> {
    ASSIGN_OR_RETURN(const Tensor target, FlatAnywhere(tensor, "tensor"));
    return pelton::Recv(communicator, target, Rank(src), tag);
  });
}

void PythonCommunicator::Barrier() {
  LaunchAndAwait("barrier", {},
                 [](Communicator& communicator) { return pelton::Barrier(communicator); });
}

void PythonCommunicator::Abort() {
  if (IsForkedChild()) return;
  aborted_.store(true, std::memory_order_relaxed);
  MutexLock lock(&open_mutex_);
  for (Communicator* communicator : open_) {
    communicator->Abort(absl::AbortedError(absl::StrCat("rank ", rank_, " called abort()")));
  }
}

}  // namespace pelton::torch_bindings
