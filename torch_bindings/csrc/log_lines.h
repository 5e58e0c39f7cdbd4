// The runtime's lines (core/base/check.h) on their way to Python.
#ifndef PELTON_TORCH_BINDINGS_CSRC_LOG_LINES_H_
#define PELTON_TORCH_BINDINGS_CSRC_LOG_LINES_H_

#include <pybind11/pybind11.h>

namespace pelton::torch_bindings {

// Has every line go to `sink(level, line)`; None: to standard error again, after what is on its way
// has arrived, or a second. A line of a thread that does not hold the GIL is handed to a thread for
// lines, because the thread that holds the GIL may be waiting for that very thread.
// Called with the GIL.
void SetPythonLogSink(pybind11::object sink);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_LOG_LINES_H_
