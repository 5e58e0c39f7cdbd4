// How much is computed and communicated in a step, the same in all processes of a run.
#ifndef PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_EXPERIMENT_H_
#define PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_EXPERIMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pelton::gpu_ipc {

// Handles of all buckets have to fit into one message.
inline constexpr int kMostBuckets = 16;

// A step is `buckets` times: `kernels` kernels of the backward pass, then one that writes a bucket,
// whose work follows. That is an allreduce and `passes` kernels over the bucket.
// Threads: a value. Owns: nothing.
struct Experiment {
  int ranks = 1;
  int buckets = 4;
  int bucket_bytes = 16 << 20;
  int kernels = 40;
  int kernel_bytes = 2 << 20;
  int passes = 4;
  int steps = 20;     // of a turn, after one that warms up
  int turns = 7;      // of each way
  int limit_s = 120;  // for the whole run: every wait ends then
  // Of NCCL, as text: those of the trainers and of the daemons.
  std::string trainers_id;
  std::string daemons_id;

  // Takes the flag --`name`. Errors: InvalidArgument: names the flag and what it has to be.
  absl::Status Set(absl::string_view name, absl::string_view value);
  // What makes another process's the same.
  std::vector<std::string> ToFlags() const;
  uint64_t count() const { return static_cast<uint64_t>(bucket_bytes) / sizeof(float); }
};

// DeadlineExceeded: the run's time was over before `what`, "the step has ended", happened.
absl::Status OutOfTime(absl::string_view what);

}  // namespace pelton::gpu_ipc

#endif  // PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_EXPERIMENT_H_
