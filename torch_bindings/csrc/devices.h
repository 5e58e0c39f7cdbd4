// Between PyTorch's devices and the runtime's.
#ifndef PELTON_TORCH_BINDINGS_CSRC_DEVICES_H_
#define PELTON_TORCH_BINDINGS_CSRC_DEVICES_H_

#include <c10/core/Device.h>

#include <string>

#include "absl/status/statusor.h"
#include "core/memory/cuda/cuda_queue.h"
#include "core/memory/stream.h"

namespace pelton::torch_bindings {

// Whether the device's streams are CUDA's. A device of PyTorch's PrivateUse1 kind is taken for one:
// tests make such a device of their stand-in for a GPU.
bool IsGpu(const at::Device& device);

// Errors: InvalidArgument: names `what`, whose device is neither the host nor a GPU.
absl::StatusOr<Device> ToDevice(const at::Device& device, const std::string& what);

// The stream that is current for the GPU on the thread that asks.
CudaQueue::CallersStream CurrentStreamOf(const at::Device& device);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_DEVICES_H_
