#include "torch_bindings/csrc/averaging_control.h"

namespace pelton::torch_bindings {

absl::Status AveragingControl::LockWeights(absl::Time deadline) {
  MutexLock lock(&mutex_);
  if (is_locked_ && owner_ == std::this_thread::get_id()) {
    return absl::FailedPreconditionError("lock_weight: this thread holds the lock already");
  }
  while (is_locked_) {
    if (unlocked_.WaitWithDeadline(&mutex_, deadline) && is_locked_) {
      return absl::DeadlineExceededError(
          "lock_weight: another thread has not unlocked the weights in time");
    }
  }
  is_locked_ = true;
  owner_ = std::this_thread::get_id();
  return absl::OkStatus();
}

absl::Status AveragingControl::UnlockWeights() {
  MutexLock lock(&mutex_);
  if (!is_locked_) {
    return absl::FailedPreconditionError("unlock_weight: the weights are not locked");
  }
  is_locked_ = false;
  owner_ = std::thread::id();
  unlocked_.Signal();
  return absl::OkStatus();
}

bool AveragingControl::held_by_this_thread() {
  MutexLock lock(&mutex_);
  return is_locked_ && owner_ == std::this_thread::get_id();
}

void AveragingControl::Reset() {
  wants_stop_.store(false, std::memory_order_relaxed);
  is_running_.store(true, std::memory_order_relaxed);
}

}  // namespace pelton::torch_bindings
