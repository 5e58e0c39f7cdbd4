#include "torch_bindings/csrc/signal_scope.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/long_wait.h"

namespace pelton::torch_bindings {
namespace {

thread_local bool is_in_handler = false;

}  // namespace

SignalScope::SignalScope() { is_in_handler = true; }
SignalScope::~SignalScope() { is_in_handler = false; }

absl::Status CheckNotInHandler() {
  if (!is_in_handler) return absl::OkStatus();
  const std::string call = CallName::Current();
  return absl::FailedPreconditionError(
      absl::StrCat("called by a signal handler while its thread waits", call.empty() ? "" : " in ",
                   call, "; have the handler set a flag, and make the call after the wait"));
}

}  // namespace pelton::torch_bindings
