#include "torch_bindings/csrc/python_communicator.h"

#include <optional>

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
#include "torch_bindings/csrc/signal_scope.h"
#include "torch_bindings/csrc/status_error.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {
namespace {

absl::StatusOr<ReduceOp> ToReduceOp(int code) {
  if ((code >= 0 && code <= 3) || (code >= 7 && code <= 10)) return static_cast<ReduceOp>(code);
  return absl::InvalidArgumentError(absl::StrCat("op: ", code, " is no reduction"));
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

absl::StatusOr<std::unique_ptr<Communicator>> PythonCommunicator::OpenOn(
    const at::Device& device) const {
  ASSIGN_OR_RETURN(const Device where, ToDevice(device, "the tensor"));
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> opened, backend_->Open(group_, where, schedules_));
  if (where.kind == DeviceKind::kHost) return opened;
  return std::make_unique<GpuCommunicator>(std::move(opened), CurrentStreamOf(device), where.index);
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
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> opened, OpenOn(device));
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

absl::StatusOr<PythonCommunicator::SharedLane> PythonCommunicator::LaneFor(Tensors tensors) {
  std::optional<at::Device> device;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (device.has_value() && *device != tensor.device()) {
      return absl::InvalidArgumentError(absl::StrCat("its tensors are on ", device->str(), " and ",
                                                     tensor.device().str(), "; one is needed"));
    }
    device = tensor.device();
  }
  return LaneOf(device.value_or(at::kCPU));
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
void PythonCommunicator::Run(const char* what, Tensors tensors, Function call) {
  ThrowIfError(CheckNotForkedChild());
  ThrowIfError(CheckNotInHandler());
  const CallName name(what, name_);
  const absl::Duration timeout = backend_->options().operation_timeout;
  const absl::StatusOr<SharedLane> lane = LaneFor(tensors);
  absl::Status status = lane.status();
  if (status.ok()) {
    status = (*lane)->Borrow(timeout, [&](Communicator& communicator) {
      return call(communicator, Clock::Real().Now() + timeout);
    });
  }
  if (!status.ok()) ThrowStatus(Annotate(status, name.ToString()));
}

template <typename LaunchFunction>
void PythonCommunicator::LaunchAndAwait(const char* what, Tensors tensors, LaunchFunction launch) {
  Run(what, tensors, [&](Communicator& communicator, absl::Time deadline) -> absl::Status {
    ASSIGN_OR_RETURN(const Completion completion, launch(communicator));
    return Await(communicator, completion, deadline, &backend_->absences().standstill());
  });
}

template <typename LaunchFunction>
void PythonCommunicator::LaunchPair(const char* what, Pair pair, LaunchFunction launch) {
  const Tensors tensors = {pair.send != nullptr ? *pair.send : at::Tensor(),
                           pair.recv != nullptr ? *pair.recv : at::Tensor()};
  LaunchAndAwait(what, tensors, [&](Communicator& communicator) -> absl::StatusOr<Completion> {
    Tensor source, target;
    if (pair.send != nullptr) {
      ASSIGN_OR_RETURN(source, FlatAnywhere(*pair.send, "send_tensor"));
    }
    if (pair.recv != nullptr) {
      ASSIGN_OR_RETURN(target, FlatAnywhere(*pair.recv, "recv_tensor"));
    }
    return launch(communicator, pair.send != nullptr ? source : target,
                  pair.recv != nullptr ? target : source);
  });
}

template <typename LaunchFunction>
void PythonCommunicator::LaunchOne(const char* what, const at::Tensor& tensor,
                                   LaunchFunction launch) {
  LaunchAndAwait(what, {tensor}, [&](Communicator& communicator) -> absl::StatusOr<Completion> {
    ASSIGN_OR_RETURN(const Tensor flat, FlatAnywhere(tensor, "tensor"));
    return launch(communicator, flat);
  });
}

using Launched = absl::StatusOr<Completion>;

void PythonCommunicator::AllReduce(const at::Tensor& send, const at::Tensor& recv, int op) {
  LaunchPair("allreduce", {&send, &recv}, [&](auto& communicator, auto from, auto to) -> Launched {
    ASSIGN_OR_RETURN(const ReduceOp reduce_op, ToReduceOp(op));
    return pelton::AllReduce(communicator, from, to, reduce_op);
  });
}

void PythonCommunicator::Reduce(const at::Tensor& send, const at::Tensor& recv, int dst, int op) {
  LaunchPair("reduce", {&send, dst == rank_ ? &recv : nullptr},
             [&](auto& communicator, auto from, auto to) -> Launched {
               ASSIGN_OR_RETURN(const ReduceOp reduce_op, ToReduceOp(op));
               return pelton::Reduce(communicator, from, to, reduce_op, Rank(dst));
             });
}

void PythonCommunicator::ReduceScatter(const at::Tensor& send, const at::Tensor& recv, int op) {
  LaunchPair("reduce_scatter", {&send, &recv},
             [&](auto& communicator, auto from, auto to) -> Launched {
               ASSIGN_OR_RETURN(const ReduceOp reduce_op, ToReduceOp(op));
               return pelton::ReduceScatter(communicator, from, to, reduce_op);
             });
}

void PythonCommunicator::AllGather(const at::Tensor& send, const at::Tensor& recv) {
  LaunchPair("allgather", {&send, &recv}, [](auto& communicator, auto from, auto to) {
    return pelton::AllGather(communicator, from, to);
  });
}

void PythonCommunicator::Broadcast(const at::Tensor& tensor, int src) {
  LaunchOne("broadcast", tensor, [&](auto& communicator, auto flat) {
    return pelton::Broadcast(communicator, flat, Rank(src));
  });
}

void PythonCommunicator::Gather(const at::Tensor& send, const at::Tensor& recv, int dst) {
  LaunchPair("gather", {&send, dst == rank_ ? &recv : nullptr},
             [&](auto& communicator, auto from, auto to) {
               return pelton::Gather(communicator, from, to, Rank(dst));
             });
}

void PythonCommunicator::Scatter(const at::Tensor& send, const at::Tensor& recv, int src) {
  LaunchPair("scatter", {src == rank_ ? &send : nullptr, &recv},
             [&](auto& communicator, auto from, auto to) {
               return pelton::Scatter(communicator, from, to, Rank(src));
             });
}

void PythonCommunicator::AllToAll(const at::Tensor& send, const at::Tensor& recv) {
  LaunchPair("alltoall", {&send, &recv}, [](auto& communicator, auto from, auto to) {
    return pelton::AllToAll(communicator, from, to);
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
  LaunchOne("send", tensor, [&](auto& communicator, auto flat) {
    return pelton::Send(communicator, flat, Rank(dst), tag);
  });
}

void PythonCommunicator::Recv(const at::Tensor& tensor, int src, int tag) {
  LaunchOne("recv", tensor, [&](auto& communicator, auto flat) {
    return pelton::Recv(communicator, flat, Rank(src), tag);
  });
}

void PythonCommunicator::Barrier() {
  LaunchAndAwait("barrier", {},
                 [](Communicator& communicator) { return pelton::Barrier(communicator); });
}

void PythonCommunicator::Abort() {
  if (IsForkedChild()) return;
  aborted_.store(true, std::memory_order_relaxed);
  for (const SharedLane& lane : lanes_.All()) lane->Abort(WasAborted());
}

}  // namespace pelton::torch_bindings
