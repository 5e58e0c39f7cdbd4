// One call on a process group, and its state while it runs.
#ifndef PELTON_TORCH_BINDINGS_CSRC_C10D_JOB_H_
#define PELTON_TORCH_BINDINGS_CSRC_C10D_JOB_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/communicator.h"

namespace pelton::torch_bindings {

// What a call launches, and what follows when all of it is done.
// Threads: a value that moves to the queue. Owns: through its closures, the tensors it works on.
struct Job {
  using Launch = absl::AnyInvocable<absl::StatusOr<Completion>(Communicator&)>;

  std::string name;  // for errors: "all_reduce"
  absl::Time deadline = absl::InfiniteFuture();
  std::vector<Launch> launches;
  // Called once if everything went well, on the thread that drives the queue; null for nothing.
  absl::AnyInvocable<void()> finish;
};

// A job under way. The queue alone changes it.
// Threads: the getters by any. Owns: its job until it is done.
class JobState {
 public:
  using Callback = absl::AnyInvocable<void(const absl::Status&)>;

  JobState(Job job, uint64_t sequence)
      : name_(job.name), job_(std::move(job)), sequence_(sequence) {}

  const std::string& name() const { return name_; }

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Only once done.
  const absl::Status& status() const { return status_; }
  uint64_t sequence() const { return sequence_; }

 private:
  friend class OperationQueue;

  const std::string name_;
  Job job_;
  const uint64_t sequence_;
  // Of the thread that drives.
  size_t launched_ = 0;
  std::vector<Completion> running_;
  absl::Status status_;
  std::atomic<bool> done_{false};
  // Guarded by the queue's mutex.
  Callback on_done_;
  absl::Status interrupted_;  // what ended the wait for it
};

// Shared: the caller's work object and the queue may each be the last to let go.
using JobHandle = std::shared_ptr<JobState>;

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_C10D_JOB_H_
