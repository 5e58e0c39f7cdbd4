// What Python sees of copies beside training.
#ifndef PELTON_TORCH_BINDINGS_CSRC_DEFINE_COPIES_H_
#define PELTON_TORCH_BINDINGS_CSRC_DEFINE_COPIES_H_

#include <pybind11/pybind11.h>

namespace pelton::torch_bindings {

// The names are those of pelton/_C.pyi.
void DefineCopies(pybind11::module_& module);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_DEFINE_COPIES_H_
