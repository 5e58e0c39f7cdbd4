// What the trainer and an averaging that runs beside it have between them.
#ifndef PELTON_TORCH_BINDINGS_CSRC_AVERAGING_CONTROL_H_
#define PELTON_TORCH_BINDINGS_CSRC_AVERAGING_CONTROL_H_

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/sync.h"

namespace pelton::torch_bindings {

// The lock of the weights, and the wish to stop, which counts once all ranks have it.
// Threads: any. Owns: nothing but its flags.
class AveragingControl {
 public:
  // Keeps the averaging from changing weights until UnlockWeights. Blocks: until `deadline`.
  // Errors: FailedPrecondition: this thread holds it; DeadlineExceeded.
  absl::Status LockWeights(absl::Time deadline) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Errors: FailedPrecondition: it is not locked.
  absl::Status UnlockWeights() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  bool held_by_this_thread() const { return owner_.load() == std::this_thread::get_id(); }

  // Asks for an end; once all ranks have asked, rounds change nothing any more.
  void Abort() { wants_stop_.store(true, std::memory_order_relaxed); }
  // Takes the wish and the end back; all ranks must, between the same rounds.
  void Reset();
  bool wants_stop() const { return wants_stop_.load(std::memory_order_relaxed); }
  // What the ranks agreed on in the last round: whether to go on.
  bool is_running() const { return is_running_.load(std::memory_order_relaxed); }
  void set_running(bool running) { is_running_.store(running, std::memory_order_relaxed); }

 private:
  // No mutex: a trainer may lock on one thread and unlock on autograd's.
  Turn weights_;
  std::atomic<std::thread::id> owner_{};  // the thread that has the weights; no id: none has
  std::atomic<bool> wants_stop_{false};
  std::atomic<bool> is_running_{true};
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_AVERAGING_CONTROL_H_
