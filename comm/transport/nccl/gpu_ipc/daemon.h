// The process that launches the buckets' work in the trainer's place.
#ifndef PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_DAEMON_H_
#define PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_DAEMON_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/transport/nccl/gpu_ipc/device.h"
#include "comm/transport/nccl/gpu_ipc/experiment.h"
#include "comm/transport/nccl/gpu_ipc/peer.h"

namespace pelton::gpu_ipc {

// Makes a context on `device`, opens the memory and the events that the trainer names, and launches
// what the trainer says is ready, until it has measured all. Blocks: until then, or `deadline`.
// Errors: have been told to the trainer; Unavailable: it is gone.
absl::Status RunDaemon(Device& device, const Experiment& experiment, int rank, Peer& trainer,
                       absl::Time deadline);

}  // namespace pelton::gpu_ipc

#endif  // PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_DAEMON_H_
