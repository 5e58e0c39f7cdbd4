#include "torch_bindings/csrc/python_handle.h"

#include "absl/time/time.h"
#include "core/base/fork.h"
#include "torch_bindings/csrc/signals.h"
#include "torch_bindings/csrc/status_to_exception.h"

namespace pelton::torch_bindings {

at::Tensor PythonHandle::Wait() {
  ThrowIfError(CheckNotForkedChild());
  ThrowIfError(CheckNotInHandler());
  lane_->Wait(job_, absl::InfiniteFuture());
  ThrowIfError(job_->status());
  if (outcome_->next != nullptr) {
    outcome_->next_lane->Wait(outcome_->next, absl::InfiniteFuture());
    ThrowIfError(outcome_->next->status());
  }
  ThrowIfError(outcome_->failure);
  return outcome_->result;
}

}  // namespace pelton::torch_bindings
