#include "torch_bindings/csrc/python_communicator.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "core/base/clock.h"
#include "core/base/status.h"
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

}  // namespace

PythonCommunicator::PythonCommunicator(std::shared_ptr<Backend> backend,
                                       std::unique_ptr<Communicator> communicator)
    : backend_(std::move(backend)), communicator_(std::move(communicator)) {
  backend_->Watch(communicator_.get());
}

PythonCommunicator::~PythonCommunicator() { backend_->Unwatch(communicator_.get()); }

template <typename LaunchFunction>
void PythonCommunicator::Run(const char* what, LaunchFunction launch) {
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    absl::StatusOr<Completion> completion = launch();
    status = completion.ok() ? Await(*communicator_, *completion,
                                     Clock::Real().Now() + backend_->options().operation_timeout)
                             : completion.status();
  }
  ThrowIfError(Annotate(status, what));
}

void PythonCommunicator::AllReduce(const at::Tensor& send, const at::Tensor& recv, int op) {
  Run("allreduce", [&]() -> absl::StatusOr<Completion> {
    ASSIGN_OR_RETURN(const ReduceOp reduce_op, ToReduceOp(op));
    ASSIGN_OR_RETURN(const Tensor source, Flat(send, "send_tensor"));
    ASSIGN_OR_RETURN(const Tensor target, Flat(recv, "recv_tensor"));
    return pelton::AllReduce(*communicator_, source, target, reduce_op);
  });
}

void PythonCommunicator::Reduce(const at::Tensor& send, const at::Tensor& recv, int dst, int op) {
  Run("reduce", [&]() -> absl::StatusOr<Completion> {
    ASSIGN_OR_RETURN(const ReduceOp reduce_op, ToReduceOp(op));
    ASSIGN_OR_RETURN(const Tensor source, Flat(send, "send_tensor"));
    Tensor target = source;
    if (dst == rank()) {
      ASSIGN_OR_RETURN(target, Flat(recv, "recv_tensor"));
    }
    return pelton::Reduce(*communicator_, source, target, reduce_op, Rank(dst));
  });
}

void PythonCommunicator::ReduceScatter(const at::Tensor& send, const at::Tensor& recv, int op) {
  Run("reduce_scatter", [&]() -> absl::StatusOr<Completion> {
    ASSIGN_OR_RETURN(const ReduceOp reduce_op, ToReduceOp(op));
    ASSIGN_OR_RETURN(const Tensor source, Flat(send, "send_tensor"));
    ASSIGN_OR_RETURN(const Tensor target, Flat(recv, "recv_tensor"));
    return pelton::ReduceScatter(*communicator_, source, target, reduce_op);
  });
}

void PythonCommunicator::AllGather(const at::Tensor& send, const at::Tensor& recv) {
  Run("allgather", [&]() -> absl::StatusOr<Completion> {
    ASSIGN_OR_RETURN(const Tensor source, Flat(send, "send_tensor"));
    ASSIGN_OR_RETURN(const Tensor target, Flat(recv, "recv_tensor"));
    return pelton::AllGather(*communicator_, source, target);
  });
}

void PythonCommunicator::Broadcast(const at::Tensor& tensor, int src) {
  Run("broadcast", [&]() -> absl::StatusOr<Completion> {
    ASSIGN_OR_RETURN(const Tensor flat, Flat(tensor, "tensor"));
    return pelton::Broadcast(*communicator_, flat, Rank(src));
  });
}

void PythonCommunicator::Send(const at::Tensor& tensor, int dst, int tag) {
  Run("send", [&]() -> absl::StatusOr<Completion> {
    ASSIGN_OR_RETURN(const Tensor source, Flat(tensor, "tensor"));
    return pelton::Send(*communicator_, source, Rank(dst), tag);
  });
}

void PythonCommunicator::Recv(const at::Tensor& tensor, int src, int tag) {
  Run("recv", [&]() -> absl::StatusOr<Completion> {
    ASSIGN_OR_RETURN(const Tensor target, Flat(tensor, "tensor"));
    return pelton::Recv(*communicator_, target, Rank(src), tag);
  });
}

void PythonCommunicator::Barrier() {
  Run("barrier", [&] { return pelton::Barrier(*communicator_); });
}

void PythonCommunicator::Abort() {
  aborted_.store(true, std::memory_order_relaxed);
  communicator_->Abort(absl::AbortedError(absl::StrCat("rank ", rank(), " called abort()")));
}

}  // namespace pelton::torch_bindings
