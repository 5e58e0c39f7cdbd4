// The node of autograd's that writes a parameter's gradient.
#ifndef PELTON_TORCH_BINDINGS_CSRC_GRAD_ACCUMULATOR_H_
#define PELTON_TORCH_BINDINGS_CSRC_GRAD_ACCUMULATOR_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace pelton::torch_bindings {

// Owns the node. Which kind of pointer depends on PyTorch's version.
using GradAccumulatorPtr =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_GRAD_ACCUMULATOR_H_
