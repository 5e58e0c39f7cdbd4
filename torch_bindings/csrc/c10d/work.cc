#include "torch_bindings/csrc/c10d/work.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/moving_deadline.h"
#include "torch_bindings/csrc/profiler_range.h"
#include "torch_bindings/csrc/signal_scope.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {
namespace {

const char* NameOf(::c10d::OpType type) {
  using Type = ::c10d::OpType;
  switch (type) {
    case Type::BROADCAST:
      return "broadcast";
    case Type::ALLREDUCE:
    case Type::ALLREDUCE_COALESCED:
      return "all_reduce";
    case Type::_ALLREDUCE_SPARSE:
      return "sparse_all_reduce";
    case Type::REDUCE:
      return "reduce";
    case Type::ALLGATHER:
    case Type::_ALLGATHER_BASE:
    case Type::ALLGATHER_COALESCED:
      return "all_gather";
    case Type::GATHER:
      return "gather";
    case Type::SCATTER:
      return "scatter";
    case Type::REDUCE_SCATTER:
    case Type::_REDUCE_SCATTER_BASE:
      return "reduce_scatter";
    case Type::ALLTOALL:
    case Type::ALLTOALL_BASE:
      return "all_to_all";
    case Type::SEND:
      return "send";
    case Type::RECV:
      return "recv";
    case Type::RECVANYSOURCE:
      return "recvAnySource";
    case Type::BARRIER:
      return "barrier";
    default:
      return "coalesced";
  }
}

}  // namespace

absl::AnyInvocable<void()> BeginRecord(const std::string& backend, ::c10d::OpType type,
                                       const std::vector<at::Tensor>& inputs) {
  if (!IsProfiled()) return nullptr;  // no name is made for nobody
  return BeginProfilerRange(absl::StrCat(backend, ":", NameOf(type)), inputs);
}

namespace {

std::exception_ptr ExceptionOf(const absl::Status& status) {
  if (status.ok()) return nullptr;
  try {
    ThrowStatus(status);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

std::exception_ptr QueuedWork::exception() const {
  return job_->done() ? ExceptionOf(job_->status()) : nullptr;
}

bool QueuedWork::wait(std::chrono::milliseconds timeout) {
  ThrowIfError(CheckNotForkedChild());
  ThrowIfError(CheckNotInHandler());
  absl::Time now = Clock::Real().Now();
  const bool is_limited = timeout > kNoTimeout;
  const MovingDeadline deadline(
      is_limited ? now + absl::FromChrono(timeout) : absl::InfiniteFuture(), &standstill_, now);
  while (!lane_->Wait(job_, deadline.At(now))) {
    now = Clock::Real().Now();
    if (now < deadline.At(now)) continue;
    ThrowStatus(absl::DeadlineExceededError(
        absl::StrCat("rank ", rank_, ": ", ::c10d::opTypeToString(opType_), " #", job_->sequence(),
                     " was not done within the ", timeout.count(), " ms that wait() was given")));
  }
  ThrowIfError(job_->status());
  return true;
}

void QueuedWork::abort() {
  lane_->Abort(
      absl::AbortedError(absl::StrCat("rank ", rank_, " called abort() on ",
                                      ::c10d::opTypeToString(opType_), " #", job_->sequence())));
}

c10::IValue QueuedWork::ResultValue() const {
  if (!results_.is_nested) return c10::IValue(results_.tensors);
  return c10::IValue(std::vector<std::vector<at::Tensor>>{results_.tensors});
}

c10::intrusive_ptr<c10::ivalue::Future> QueuedWork::getFuture() {
  const std::scoped_lock lock(mutex_);
  if (future_ != nullptr) return future_;
  c10::IValue value = ResultValue();
  future_ = c10::make_intrusive<c10::ivalue::Future>(value.type());
  lane_->OnDone(job_, [future = future_, value = std::move(value)](const absl::Status& status) {
    if (status.ok()) {
      future->markCompleted(value);
    } else {
      future->setError(ExceptionOf(status));
    }
  });
  return future_;
}

}  // namespace pelton::torch_bindings
