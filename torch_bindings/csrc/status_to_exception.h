// The one place where an absl::Status becomes an exception.
#ifndef PELTON_TORCH_BINDINGS_CSRC_STATUS_TO_EXCEPTION_H_
#define PELTON_TORCH_BINDINGS_CSRC_STATUS_TO_EXCEPTION_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pelton::torch_bindings {

// Throws the Python exception of pelton.errors that fits `status`, through PyTorch's own mechanism,
// so that it arrives as itself from the engine's threads too. Does not need the GIL.
[[noreturn]] void ThrowStatus(const absl::Status& status);

inline void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) ThrowStatus(status);
}

template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  ThrowIfError(value.status());
  return *std::move(value);
}

// Makes pybind11 translate what ThrowStatus throws; called once, when the module is made.
void RegisterStatusTranslator();

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_STATUS_TO_EXCEPTION_H_
