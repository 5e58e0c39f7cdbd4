// What PyTorch's profilers see of an operation.
#ifndef PELTON_TORCH_BINDINGS_CSRC_C10D_RECORD_H_
#define PELTON_TORCH_BINDINGS_CSRC_C10D_RECORD_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace pelton::torch_bindings {

// Begins an event "<backend>:<operation>" with the shapes of `inputs`, under the names that gloo
// gives its own. The answer ends it, on any thread; null if nobody is profiling.
absl::AnyInvocable<void()> BeginRecord(const std::string& backend, ::c10d::OpType type,
                                       const std::vector<at::Tensor>& inputs);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_C10D_RECORD_H_
