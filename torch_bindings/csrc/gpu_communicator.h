// A communicator of a GPU as Python's collectives see it: in the order of the current stream.
#ifndef PELTON_TORCH_BINDINGS_CSRC_GPU_COMMUNICATOR_H_
#define PELTON_TORCH_BINDINGS_CSRC_GPU_COMMUNICATOR_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "comm/forwarding_communicator.h"
#include "core/memory/cuda/cuda_queue.h"
#include "core/memory/cuda/cuda_stream.h"

namespace pelton::torch_bindings {

// Launches everything on the calling thread's current stream, so that an operation comes after what
// made its tensors. Threads: as Communicator. Owns: the communicator it wraps.
class GpuCommunicator final : public ForwardingCommunicator {
 public:
  GpuCommunicator(std::unique_ptr<Communicator> wrapped, CudaQueue::CallersStream callers,
                  int device_index)
      : ForwardingCommunicator(std::move(wrapped)),
        callers_(std::move(callers)),
        device_index_(device_index) {}

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream&) override {
    CudaStream stream(callers_(), device_index_);
    return ForwardingCommunicator::Launch(operation, stream);
  }

 private:
  const CudaQueue::CallersStream callers_;
  const int device_index_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_GPU_COMMUNICATOR_H_
