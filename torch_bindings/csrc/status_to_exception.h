// Statuses as Python's exceptions.
#ifndef PELTON_TORCH_BINDINGS_CSRC_STATUS_TO_EXCEPTION_H_
#define PELTON_TORCH_BINDINGS_CSRC_STATUS_TO_EXCEPTION_H_

#include "torch_bindings/csrc/status_error.h"  // IWYU pragma: export

namespace pelton::torch_bindings {

// From now on ThrowStatus throws the Python exception of pelton.errors that fits the status,
// through PyTorch's own mechanism, so that it arrives as itself from the engine's threads too, and
// pybind11 translates it. Throwing does not need the GIL. Called once, when the module is made.
void RegisterStatusTranslator();

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_STATUS_TO_EXCEPTION_H_
