#include "torch_bindings/csrc/status_to_exception.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <array>
#include <cstring>

#include "torch_bindings/csrc/signals.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;

constexpr size_t kCodes = 17;  // of absl::StatusCode

// By code. Looked up once: where PyTorch asks for a type no Python may run, because an error may be
// set, and a signal handler that raises there would end the process.
std::array<PyObject*, kCodes>& Types() {
  static std::array<PyObject*, kCodes> types = {};
  return types;
}

void LookUpTypes() {
  const py::object from_status = py::module_::import("pelton.errors").attr("from_status");
  for (size_t code = 0; code < kCodes; ++code) {
    const py::object error = from_status(code, "");
    Types()[code] = py::type::of(error).release().ptr();  // for ever
  }
}

// PyTorch asks for the Python type only when the exception has reached Python, with the GIL held.
// Threads: a value. Owns: its text.
class PythonError final : public torch::PyTorchError {
 public:
  explicit PythonError(const absl::Status& status)
      : torch::PyTorchError(std::string(status.message())),
        code_(static_cast<size_t>(status.code())) {}

  PyObject* python_type() override { return Types()[code_ < kCodes ? code_ : 0]; }

 private:
  size_t code_;
};

[[noreturn]] void ThrowToPython(const absl::Status& status) {
  ThrowIfRaisedBySignal(status);
  throw PythonError(status);
}

// A text may quote what is no UTF-8, such as a path, for which PyErr_SetString would set another
// error.
void SetError(PyObject* type, const char* text) {
  const auto decoded = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "replace"));
  if (decoded) PyErr_SetObject(type, decoded.ptr());
}

}  // namespace

void RegisterStatusTranslator() {
  LookUpTypes();
  SetThrower(&ThrowToPython);
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (PythonError& error) {
      SetError(error.python_type(), error.what());
    } catch (python_error& error) {
      error.restore();
    }
  });
}

}  // namespace pelton::torch_bindings
