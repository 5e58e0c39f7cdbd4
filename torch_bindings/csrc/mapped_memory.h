// Memory of the host that a GPU reads and writes itself, for tensors that other processes reach.
#ifndef PELTON_TORCH_BINDINGS_CSRC_MAPPED_MEMORY_H_
#define PELTON_TORCH_BINDINGS_CSRC_MAPPED_MEMORY_H_

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"

namespace pelton::torch_bindings {

// The storage of `tensor`, which is on a GPU, and with it every view of it, moves to shared memory
// of the host that the GPU has mapped: what kernels write there needs no copy to be seen by the
// host, and what the host writes, none to be seen by kernels that are launched after it. The result
// is the same memory as a tensor of the CPU; both keep it alive. A tensor that lies there already
// stays. Blocks: until the tensor is copied. Errors: InvalidArgument: it is not contiguous, or a
// part of other memory; Unimplemented: this GPU has other addresses for the host's memory; those of
// CUDA's runtime.
absl::StatusOr<at::Tensor> MoveToMappedMemory(const at::Tensor& tensor);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_MAPPED_MEMORY_H_
