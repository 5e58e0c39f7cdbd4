// What Python sees of Pelton's doors to torch.distributed.
#ifndef PELTON_TORCH_BINDINGS_CSRC_C10D_BIND_H_
#define PELTON_TORCH_BINDINGS_CSRC_C10D_BIND_H_

#include <pybind11/pybind11.h>

namespace pelton::torch_bindings {

// Adds process_group() and Store; see pelton/_C.pyi for the contract.
void DefineC10d(pybind11::module_& module);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_C10D_BIND_H_
