// Windows as Python sees them.
#ifndef PELTON_TORCH_BINDINGS_CSRC_DEFINE_WINDOWS_H_
#define PELTON_TORCH_BINDINGS_CSRC_DEFINE_WINDOWS_H_

#include <torch/csrc/utils/pybind.h>

namespace pelton::torch_bindings {

// Windows and Window; see pelton/_C.pyi. Called once, when the module is made.
void DefineWindows(pybind11::module_& module);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_DEFINE_WINDOWS_H_
