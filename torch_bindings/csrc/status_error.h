// The one place where an absl::Status becomes an exception, because it has to pass through
// PyTorch's engine, or to a caller that knows no statuses.
#ifndef PELTON_TORCH_BINDINGS_CSRC_STATUS_ERROR_H_
#define PELTON_TORCH_BINDINGS_CSRC_STATUS_ERROR_H_

#include <stdexcept>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pelton::torch_bindings {

// Threads: a value. Owns: the status.
class StatusError final : public std::runtime_error {
 public:
  explicit StatusError(absl::Status status)
      : std::runtime_error(std::string(status.message())), status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

// Throws a StatusError, or what the one that SetThrower was given throws instead.
[[noreturn]] void ThrowStatus(const absl::Status& status);

inline void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) ThrowStatus(status);
}

template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  ThrowIfError(value.status());
  return *std::move(value);
}

// For a language that has exceptions of its own: `thrower` does not return. Called once, before
// anything is thrown.
void SetThrower(void (*thrower)(const absl::Status& status));

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_STATUS_ERROR_H_
