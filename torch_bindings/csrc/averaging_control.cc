#include "torch_bindings/csrc/averaging_control.h"

namespace pelton::torch_bindings {

absl::Status AveragingControl::LockWeights(absl::Time deadline) {
  if (held_by_this_thread()) {
    return absl::FailedPreconditionError(
        "lock_weight: this thread holds the lock already; call unlock_weight first");
  }
  if (!weights_.Take(deadline)) {
    return absl::DeadlineExceededError(

        "lock_weight: another thread has not unlocked the weights in time; let it call "
        "unlock_weight sooner, or wait longer");
  }
  owner_.store(std::this_thread::get_id());
  return absl::OkStatus();
}

absl::Status AveragingControl::UnlockWeights() {
  if (owner_.exchange(std::thread::id()) == std::thread::id()) {
    return absl::FailedPreconditionError(
        "unlock_weight: the weights are not locked; call lock_weight first");
  }
  weights_.GiveBack();
  return absl::OkStatus();
}

void AveragingControl::Reset() {
  wants_stop_.store(false, std::memory_order_relaxed);
  is_running_.store(true, std::memory_order_relaxed);
}

}  // namespace pelton::torch_bindings
