// The Python classes of operations that are waited for later.
#ifndef PELTON_TORCH_BINDINGS_CSRC_DEFINE_QUEUE_H_
#define PELTON_TORCH_BINDINGS_CSRC_DEFINE_QUEUE_H_

#include <torch/csrc/utils/pybind.h>

namespace pelton::torch_bindings {

// Adds Queue, Handle and WeightTable to `module`.
void DefineQueue(pybind11::module_& module);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_DEFINE_QUEUE_H_
