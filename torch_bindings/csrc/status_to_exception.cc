#include "torch_bindings/csrc/status_to_exception.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;

// PyTorch asks for the Python type only when the exception has reached Python, with the GIL held.
// Threads: a value. Owns: its text.
class StatusError final : public torch::PyTorchError {
 public:
  explicit StatusError(const absl::Status& status)
      : torch::PyTorchError(std::string(status.message())), code_(status.code()) {}

  PyObject* python_type() override {
    py::object error =
        py::module_::import("pelton.errors").attr("from_status")(static_cast<int>(code_), msg);
    return reinterpret_cast<PyObject*>(Py_TYPE(error.ptr()));  // lives as long as its module
  }

 private:
  absl::StatusCode code_;
};

}  // namespace

void ThrowStatus(const absl::Status& status) { throw StatusError(status); }

void RegisterStatusTranslator() {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (StatusError& error) {
      PyErr_SetString(error.python_type(), error.what());
    }
  });
}

}  // namespace pelton::torch_bindings
