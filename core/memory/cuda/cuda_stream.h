// A GPU's stream, for operations to be ordered by.
#ifndef PELTON_CORE_MEMORY_CUDA_CUDA_STREAM_H_
#define PELTON_CORE_MEMORY_CUDA_CUDA_STREAM_H_

#include "core/memory/cuda/cuda_runtime.h"
#include "core/memory/stream.h"

namespace pelton {

// Names a stream of the CUDA runtime; null is the device's default stream.
// Threads: as Stream. Owns: nothing: the runtime's stream outlives the completion of what was
// launched on it.
class CudaStream final : public Stream {
 public:
  CudaStream(cuda::StreamHandle handle, int device_index)
      : handle_(handle), device_index_(device_index) {}

  DeviceKind device() const override { return DeviceKind::kCuda; }
  cuda::StreamHandle handle() const { return handle_; }
  int device_index() const { return device_index_; }

 private:
  cuda::StreamHandle handle_;
  int device_index_;
};

}  // namespace pelton

#endif  // PELTON_CORE_MEMORY_CUDA_CUDA_STREAM_H_
