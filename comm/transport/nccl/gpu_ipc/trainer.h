// The process whose kernels the buckets' work stands beside.
#ifndef PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_TRAINER_H_
#define PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_TRAINER_H_

#include <array>
#include <cstdint>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/nccl/gpu_ipc/device.h"
#include "comm/transport/nccl/gpu_ipc/experiment.h"
#include "comm/transport/nccl/gpu_ipc/peer.h"

namespace pelton::gpu_ipc {

// What is on the device in a step.
enum class Way : uint8_t {
  kCompute,  // the kernels of the backward pass alone
  kWork,     // the buckets' work alone
  kHere,     // both, and this process launches the work
  kThere,    // both, and the daemon launches the work
};
inline constexpr size_t kWayCount = 4;

// Threads: a value. Owns: its numbers.
struct Figures {
  std::array<std::vector<double>, kWayCount> milliseconds;  // of a step; one for each turn
  // What the device has less of, by the daemon's context, and by its end of NCCL.
  int64_t context_bytes = 0;
  int64_t nccl_bytes = 0;
  int verified_steps = 0;  // those of kHere and of kThere after which every bucket was right
};

// Starts a daemon and measures all ways in turns. After every step the buckets' values are looked
// at. Writes to `out` which process is which, before the first step. Blocks: until `deadline`.
// Errors: name what failed, and the daemon if it is gone; DataLoss: a wrong value.
absl::StatusOr<Figures> RunTrainer(Device& device, const Experiment& experiment, int rank,
                                   Peer& launcher, absl::Time deadline, std::ostream& out);

// As a table, with how much of the work each way hides behind the kernels.
void Print(const Experiment& experiment, const Figures& figures, std::ostream& out);

}  // namespace pelton::gpu_ipc

#endif  // PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_TRAINER_H_
