// Python's signal handlers run while the runtime waits, and what they raise ends the wait.
#ifndef PELTON_TORCH_BINDINGS_CSRC_SIGNALS_H_
#define PELTON_TORCH_BINDINGS_CSRC_SIGNALS_H_

#include "absl/status/status.h"
#include "torch_bindings/csrc/signal_scope.h"  // IWYU pragma: export

namespace pelton::torch_bindings {

// Has waits on Python's main thread ask for signals (core/base/long_wait.h): as everywhere in
// Python, handlers run on that thread alone. A handler that returns lets the wait go on. Called
// with the GIL, once, when the module is made.
void HearSignals();

// Throws what a signal handler has raised if `status` is the interrupt that it caused on this
// thread; once, later ones are statuses like any other. Does not need the GIL.
void ThrowIfRaisedBySignal(const absl::Status& status);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_SIGNALS_H_
