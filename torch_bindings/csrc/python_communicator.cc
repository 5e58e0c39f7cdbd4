#include "torch_bindings/csrc/python_communicator.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/all_to_all_v.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "comm/reduction/reducible.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/memory/device_queue.h"
#include "torch_bindings/csrc/signal_scope.h"
#include "torch_bindings/csrc/status_error.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {
namespace {

absl::StatusOr<ReduceOp> ToReduceOp(int code) {
  if ((code >= 0 && code <= 3) || (code >= 7 && code <= 10)) return static_cast<ReduceOp>(code);
  return absl::InvalidArgumentError(absl::StrCat("op: ", code, " is no reduction"));
}

// Errors: InvalidArgument: the tensors are on several devices.
absl::StatusOr<at::Device> DeviceOf(std::initializer_list<at::Tensor> tensors) {
  std::optional<at::Device> device;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (device.has_value() && *device != tensor.device()) {
      return absl::InvalidArgumentError(absl::StrCat("its tensors are on ", device->str(), " and ",
                                                     tensor.device().str(), "; one is needed"));
    }
    device = tensor.device();
  }
  return device.value_or(at::kCPU);
}

OnStream CurrentStreamOn(const at::Device& device) {
  if (device.is_cpu()) return std::nullopt;
  return CudaStream(CurrentStreamOf(device)(), device.index());
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
                                       std::string name, std::string schedules)
    : backend_(std::move(backend)),
      group_(std::move(group)),
      name_(std::move(name)),
      schedules_(std::move(schedules)),
      rank_(group_.RankOf(backend_->rank()).value_or(Rank(-1)).value()),
      world_size_(group_.size().value()) {
  ThrowIfError(LaneOf(at::kCPU).status());
}

bool PythonCommunicator::TakeOpening() {
  return opening_.Take(Clock::Real().Now() + backend_->options().join_timeout);
}

absl::Status PythonCommunicator::OpensForTooLong() const {
  return absl::DeadlineExceededError(absl::StrCat(
      "rank ", rank_, ": another thread has been opening a communicator of this group for ",
      absl::ToInt64Milliseconds(backend_->options().join_timeout),
      " ms; all ranks have to make the same calls"));
}

absl::StatusOr<PythonCommunicator::SharedLane> PythonCommunicator::LaneOf(
    const at::Device& device) {
  if (std::optional<SharedLane> found = lanes_.Find(device)) return *std::move(found);
  if (!TakeOpening()) return OpensForTooLong();
  const TurnHolder holder(&opening_);
  if (std::optional<SharedLane> found = lanes_.Find(device)) return *std::move(found);
  if (is_closed_) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank_, ": the communicator's group was destroyed"));
  }
  if (aborted()) return WasAborted();
  ASSIGN_OR_RETURN(const Device where, ToDevice(device, "the tensor"));
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> opened, backend_->Open(group_, where, schedules_));
  SharedLane lane =
      lane::Lane::Create(std::move(opened), nullptr, &backend_->absences().standstill());
  lanes_.Enter(device, lane);
  // An abort that has looked through the lanes before this one was there has left its mark by now.
  if (aborted()) lane->Abort(WasAborted());
  return lane;
}

absl::Status PythonCommunicator::WasAborted() const {
  return absl::AbortedError(absl::StrCat("rank ", rank_, " called abort()"));
}

void PythonCommunicator::Close() {
  if (IsForkedChild()) return;
  ThrowIfError(CheckNotInHandler());
  if (!TakeOpening()) return ThrowIfError(OpensForTooLong());
  const TurnHolder holder(&opening_);
  is_closed_ = true;
  for (const SharedLane& lane : lanes_.TakeAll()) lane->Stop();
}

void PythonCommunicator::CheckReducible(at::ScalarType type, int op) {
  const DType dtype = ValueOrThrow(ToDType(type));
  ThrowIfError(pelton::CheckReducible(dtype, ValueOrThrow(ToReduceOp(op))));
}

template <typename Function>
void PythonCommunicator::Run(absl::string_view what, Tensors tensors, Function call) {
  ThrowIfError(CheckNotForkedChild());
  ThrowIfError(CheckNotInHandler());
  const CallName name(what, name_);
  const absl::Duration timeout = backend_->options().operation_timeout;
  const auto run = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const at::Device device, DeviceOf(tensors));
    ASSIGN_OR_RETURN(const SharedLane lane, LaneOf(device));
    OnStream stream = CurrentStreamOn(device);
    return lane->Borrow(timeout, [&](Communicator& communicator) {
      return call(communicator, PointerTo(stream), Clock::Real().Now() + timeout);
    });
  };
  const absl::Status status = run();
  if (!status.ok()) ThrowStatus(Annotate(status, name.ToString()));
}

template <typename LaunchFunction>
void PythonCommunicator::LaunchAndAwait(absl::string_view what, Tensors tensors,
                                        LaunchFunction launch) {
  Run(what, tensors, [&](auto& communicator, Stream* stream, absl::Time deadline) -> absl::Status {
    ASSIGN_OR_RETURN(const Completion completion, launch(communicator, stream));
    return Await(communicator, completion, deadline, &backend_->absences().standstill());
  });
}

using Launched = absl::StatusOr<Completion>;

template <typename LaunchFunction>
void PythonCommunicator::LaunchOne(absl::string_view what, const at::Tensor& tensor,
                                   LaunchFunction launch) {
  LaunchAndAwait(what, {tensor}, [&](auto& communicator, Stream* stream) -> Launched {
    ASSIGN_OR_RETURN(const Tensor flat, FlatAnywhere(tensor, "tensor"));
    return launch(communicator, flat, stream);
  });
}

void PythonCommunicator::Collective(OperationKind kind, const at::Tensor& send,
                                    const at::Tensor& recv, Rank root, int op) {
  const OperationTraits& traits = TraitsOf(kind);
  const auto has = [&](TensorLength length) {
    if (length == TensorLength::kNone) return false;
    return !IsOnRootOnly(length) || root.value() == rank_;
  };
  const bool gives = has(traits.source);
  const bool receives = has(traits.target);
  // The only tensor of a kind is called so.
  const bool is_alone = traits.source == TensorLength::kNone;
  const Tensors tensors = {gives ? send : at::Tensor(), receives ? recv : at::Tensor()};
  LaunchAndAwait(traits.name, tensors, [&](auto& communicator, Stream* stream) -> Launched {
    CollectiveCall call{.kind = kind, .root = root};
    if (gives) {
      ASSIGN_OR_RETURN(call.source, FlatAnywhere(send, "send_tensor"));
    }
    if (receives) {
      ASSIGN_OR_RETURN(call.target, FlatAnywhere(recv, is_alone ? "tensor" : "recv_tensor"));
    }
    if (traits.reduces) {
      ASSIGN_OR_RETURN(call.op, ToReduceOp(op));
    }
    return LaunchCollective(communicator, call, stream);
  });
}

void PythonCommunicator::AllToAllV(const at::Tensor& send, const std::vector<int64_t>& send_counts,
                                   const std::vector<int64_t>& send_displs, const at::Tensor& recv,
                                   const std::vector<int64_t>& recv_counts,
                                   const std::vector<int64_t>& recv_displs) {
  Run("alltoall_v", {send, recv},
      [&](Communicator& communicator, Stream*, absl::Time deadline) -> absl::Status {
        ASSIGN_OR_RETURN(const Tensor source, Flat(send, "send_tensor"));
        ASSIGN_OR_RETURN(const Tensor target, Flat(recv, "recv_tensor"));
        ASSIGN_OR_RETURN(const auto source_parts, ToParts(send_counts, send_displs, "send"));
        ASSIGN_OR_RETURN(const auto target_parts, ToParts(recv_counts, recv_displs, "recv"));
        return pelton::AllToAllV(communicator, source, source_parts, target, target_parts, deadline,
                                 &backend_->absences().standstill());
      });
}

void PythonCommunicator::Send(const at::Tensor& tensor, int dst, int tag) {
  LaunchOne("send", tensor, [&](auto& communicator, auto flat, Stream* stream) {
    return pelton::Send(communicator, flat, Rank(dst), tag, stream);
  });
}

void PythonCommunicator::Recv(const at::Tensor& tensor, int src, int tag) {
  LaunchOne("recv", tensor, [&](auto& communicator, auto flat, Stream* stream) {
    return pelton::Recv(communicator, flat, Rank(src), tag, stream);
  });
}

void PythonCommunicator::Abort() {
  if (IsForkedChild()) return;
  aborted_.store(true, std::memory_order_relaxed);
  for (const SharedLane& lane : lanes_.All()) lane->Abort(WasAborted());
}

}  // namespace pelton::torch_bindings
