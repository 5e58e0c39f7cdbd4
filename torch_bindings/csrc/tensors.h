// Between PyTorch's tensors and the runtime's.
#ifndef PELTON_TORCH_BINDINGS_CSRC_TENSORS_H_
#define PELTON_TORCH_BINDINGS_CSRC_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/collectives.h"
#include "core/memory/dtype.h"

namespace pelton::torch_bindings {

// Errors: InvalidArgument: a type that no reduction knows, by name.
absl::StatusOr<DType> ToDType(at::ScalarType type);
at::ScalarType ToScalarType(DType dtype);

// The memory of a contiguous tensor, wherever it is. Errors: InvalidArgument: names `argument`, its
// layout or dtype.
absl::StatusOr<Tensor> FlatAnywhere(const at::Tensor& tensor, const std::string& argument);
// The same of a CPU tensor. Errors: also InvalidArgument: it is on another device.
absl::StatusOr<Tensor> Flat(const at::Tensor& tensor, const std::string& argument);

// A tensor over memory that somebody else owns and keeps alive. Shape: `sizes`, contiguous.
at::Tensor ViewOf(void* data, at::IntArrayRef sizes, at::ScalarType type);

// An uninitialised tensor in memory that the ranks of this host reach directly. Shape: `sizes`.
at::Tensor EmptyShared(at::IntArrayRef sizes, at::ScalarType type);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_TENSORS_H_
