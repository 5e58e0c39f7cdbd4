// Which threads are in one of Python's signal handlers, without Python.
#ifndef PELTON_TORCH_BINDINGS_CSRC_SIGNAL_SCOPE_H_
#define PELTON_TORCH_BINDINGS_CSRC_SIGNAL_SCOPE_H_

#include "absl/status/status.h"

namespace pelton::torch_bindings {

// While it lives, signal handlers may run on this thread, which is within a wait. Scopes do not
// nest. Threads: one. Owns: nothing.
class SignalScope {
 public:
  SignalScope();
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;
};

// A handler that runs within a wait holds what the wait holds, so that another wait could not end.
// Errors: FailedPrecondition: this is one.
absl::Status CheckNotInHandler();

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_SIGNAL_SCOPE_H_
