// What Python sees of a communicator.
#ifndef PELTON_TORCH_BINDINGS_CSRC_DEFINE_COMMUNICATOR_H_
#define PELTON_TORCH_BINDINGS_CSRC_DEFINE_COMMUNICATOR_H_

#include <torch/csrc/utils/pybind.h>

namespace pelton::torch_bindings {

// Adds the class Communicator to the extension module; see pelton/_C.pyi for the contract.
void DefineCommunicator(pybind11::module_& module);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_DEFINE_COMMUNICATOR_H_
