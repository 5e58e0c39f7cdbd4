// pelton._C.Model and its like: names and conversions only; see pelton/_C.pyi for the contract.
#ifndef PELTON_TORCH_BINDINGS_CSRC_DEFINE_MODEL_H_
#define PELTON_TORCH_BINDINGS_CSRC_DEFINE_MODEL_H_

#include <pybind11/pybind11.h>

namespace pelton::torch_bindings {

void DefineModel(pybind11::module_& module);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_DEFINE_MODEL_H_
