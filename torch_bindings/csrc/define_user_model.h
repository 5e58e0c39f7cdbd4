// What Python sees of buckets that a user has chosen.
#ifndef PELTON_TORCH_BINDINGS_CSRC_DEFINE_USER_MODEL_H_
#define PELTON_TORCH_BINDINGS_CSRC_DEFINE_USER_MODEL_H_

#include <torch/csrc/utils/pybind.h>

namespace pelton::torch_bindings {

// Adds the classes UserModel, UserOperation and AveragingControl to the extension module; see
// pelton/_C.pyi for the contract.
void DefineUserModel(pybind11::module_& module);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_DEFINE_USER_MODEL_H_
