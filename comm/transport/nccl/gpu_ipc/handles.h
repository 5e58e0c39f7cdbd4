// What a trainer gives its daemon: the buckets' memory, and two events for each.
#ifndef PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_HANDLES_H_
#define PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_HANDLES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/transport/nccl/gpu_ipc/device.h"

namespace pelton::gpu_ipc {

// Threads: a value. Owns: nothing, see Device.
struct SharedBuckets {
  float* memory = nullptr;               // [buckets, count]
  std::vector<cuda::EventHandle> ready;  // recorded by the trainer: the bucket may be read
  std::vector<cuda::EventHandle> done;   // by whoever did the work: its result may be read
};

// Makes them in this process.
absl::StatusOr<SharedBuckets> MakeBuckets(Device& device, const Experiment& experiment);
// As bytes for another process. Errors: those of the runtime, with what is needed.
absl::StatusOr<std::string> Export(Device& device, const SharedBuckets& buckets);
// What another process has exported. Errors: the same; InvalidArgument: not so many bytes.
absl::StatusOr<SharedBuckets> Import(Device& device, const Experiment& experiment,
                                     const std::string& bytes);

}  // namespace pelton::gpu_ipc

#endif  // PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_HANDLES_H_
