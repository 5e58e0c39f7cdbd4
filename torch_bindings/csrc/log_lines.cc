#include "torch_bindings/csrc/log_lines.h"

#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/threads.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;

constexpr size_t kMostLines = 1000;  // what comes while nobody takes them is dropped
constexpr absl::Duration kDrainTime = absl::Seconds(1);

// Where lines go. Threads: those that hold the GIL. Owns: the sink, for ever: a line may be on its
// way to it.
py::object* sink = nullptr;

// Lines on their way to Python. It lives as long as the process, because a line may come from any
// thread at any time.
CallThread& Lines() {
  static auto* const lines = new CallThread("pelton-log", kMostLines);
  return *lines;
}

// With the GIL.
void Tell(LogLevel level, absl::string_view text) {
  if (sink == nullptr) return;
  try {
    (*sink)(static_cast<int>(level), py::str(text.data(), text.size()));
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the logging of a line of Pelton's");
  }
}

void TellPython(LogLevel level, absl::string_view text) {
  if (IsForkedChild()) return;  // its parent speaks for itself
  if (PyGILState_Check() != 0) {
    Tell(level, text);
    return;
  }
  Lines().Add([level, line = std::string(text)] {
    const py::gil_scoped_acquire locked;
    Tell(level, line);
  });
}

}  // namespace

void SetPythonLogSink(py::object new_sink) {
  if (!new_sink.is_none()) {
    sink = new py::object(std::move(new_sink));
    SetLogSink(&TellPython);
    return;
  }
  SetLogSink(nullptr);
  if (IsForkedChild()) return;
  {
    const py::gil_scoped_release unlocked;
    (void)Lines().AwaitIdle(Clock::Real().Now() + kDrainTime);
  }
  sink = nullptr;
}

}  // namespace pelton::torch_bindings
