#include "torch_bindings/csrc/status_error.h"

#include <atomic>

namespace pelton::torch_bindings {
namespace {

std::atomic<void (*)(const absl::Status& status)> chosen_thrower{nullptr};

}  // namespace

void ThrowStatus(const absl::Status& status) {
  if (auto* const thrower = chosen_thrower.load()) thrower(status);
  throw StatusError(status);
}

void SetThrower(void (*thrower)(const absl::Status& status)) { chosen_thrower.store(thrower); }

}  // namespace pelton::torch_bindings
