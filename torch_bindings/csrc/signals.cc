#include "torch_bindings/csrc/signals.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/long_wait.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;

unsigned long main_thread = 0;  // as Python numbers threads

// What a handler raised, from the wait that it ended until that wait's error is thrown. Only ever
// set on the main thread, which may end after Python has: never destroyed.
std::unique_ptr<python_error>& Raised() {
  static auto* const raised = new std::unique_ptr<python_error>();
  return *raised;
}

absl::Status Interrupted(const python_error& raised) {
  const auto* const type = reinterpret_cast<PyTypeObject*>(raised.type);
  return InterruptedError(absl::StrCat("interrupted by a signal (", type->tp_name, ")"));
}

// Waits have given the GIL away, which handlers need.
absl::Status CheckSignals() {
  if (PyThread_get_thread_ident() != main_thread || Py_IsInitialized() == 0) {
    return absl::OkStatus();
  }
  const py::gil_scoped_acquire locked;
  if (Raised() == nullptr) {
    {
      const SignalScope handlers;
      if (PyErr_CheckSignals() == 0) return absl::OkStatus();
    }
    Raised() = std::make_unique<python_error>();
    Raised()->persist();
  }
  return Interrupted(*Raised());
}

}  // namespace

void HearSignals() {
  main_thread =
      py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  SetInterruptCheck(&CheckSignals);
}

void ThrowIfRaisedBySignal(const absl::Status& status) {
  if (!IsInterrupted(status) || PyThread_get_thread_ident() != main_thread) return;
  const std::unique_ptr<python_error> raised = std::move(Raised());
  if (raised != nullptr) throw python_error(std::move(*raised));
}

}  // namespace pelton::torch_bindings
