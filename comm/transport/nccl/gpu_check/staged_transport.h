// A GPU's transport for tensors that lie in the host's memory, so that a suite written for hosts
// runs on a device.
#ifndef PELTON_COMM_TRANSPORT_NCCL_GPU_CHECK_STAGED_TRANSPORT_H_
#define PELTON_COMM_TRANSPORT_NCCL_GPU_CHECK_STAGED_TRANSPORT_H_

#include <memory>

#include "comm/transport/transport.h"
#include "core/memory/cuda/cuda_runtime.h"

namespace pelton {

// Wraps the communicators of `device`'s transport: Launch copies the source to the device, Query
// the result back once it is there. What overlaps on the host overlaps there. For checks only: the
// copies wait. The runtime outlives it.
std::unique_ptr<Transport> MakeStagedTransport(std::unique_ptr<Transport> device_transport,
                                               const cuda::CudaRuntime& runtime, int device);

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_NCCL_GPU_CHECK_STAGED_TRANSPORT_H_
