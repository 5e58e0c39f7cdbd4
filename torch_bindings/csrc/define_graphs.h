// What Python sees of graphs over ranks.
#ifndef PELTON_TORCH_BINDINGS_CSRC_DEFINE_GRAPHS_H_
#define PELTON_TORCH_BINDINGS_CSRC_DEFINE_GRAPHS_H_

#include <torch/csrc/utils/pybind.h>

namespace pelton::torch_bindings {

// Adds the class Graphs and the functions that make some to the extension module; see
// pelton/_C.pyi for the contract.
void DefineGraphs(pybind11::module_& module);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_DEFINE_GRAPHS_H_
