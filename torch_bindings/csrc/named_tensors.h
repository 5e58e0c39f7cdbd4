// The tensors of a model as the planner sees them.
#ifndef PELTON_TORCH_BINDINGS_CSRC_NAMED_TENSORS_H_
#define PELTON_TORCH_BINDINGS_CSRC_NAMED_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/bucket/tensor_spec.h"

namespace pelton::torch_bindings {

// In registration order, each tensor once.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Where buckets are: on the tensors' device, or in the host's memory, where tensors of a device are
// copied to.
enum class BucketsAt { kHost, kTensors };

// One spec per tensor; those of two dimensions and more are matrices of [shape[0], rest]. Errors:
// InvalidArgument: there is none, or one is neither on the CPU nor on a GPU or of a dtype that
// cannot be communicated; names it.
absl::StatusOr<std::vector<TensorSpec>> SpecsOf(const NamedTensors& tensors, BucketsAt buckets);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_NAMED_TENSORS_H_
