#include "torch_bindings/csrc/c10d/bind.h"

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>

#include "backend/backend.h"
#include "torch_bindings/csrc/c10d/process_group.h"
#include "torch_bindings/csrc/c10d/store.h"

namespace pelton::torch_bindings {

// Lets go of what it points to without Python's lock, which a thread that the end of a process
// group waits for may need; PyTorch's own backends are held in the same way.
// Threads: one at a time. Owns: a reference.
template <typename T>
class UnlockedPointer {
 public:
  UnlockedPointer() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): as a pointer is
  UnlockedPointer(c10::intrusive_ptr<T> pointer) : pointer_(std::move(pointer)) {}
  explicit UnlockedPointer(T* pointer)
      : pointer_(c10::intrusive_ptr<T>::unsafe_steal_from_new(pointer)) {}
  UnlockedPointer(const UnlockedPointer&) = default;
  UnlockedPointer& operator=(const UnlockedPointer&) = default;
  ~UnlockedPointer() {
    if (pointer_ == nullptr) return;
    std::optional<pybind11::gil_scoped_release> unlocked;
    if (PyGILState_Check() != 0) unlocked.emplace();
    pointer_.reset();
  }

  T* get() const { return pointer_.get(); }

 private:
  c10::intrusive_ptr<T> pointer_;
};

}  // namespace pelton::torch_bindings

PYBIND11_DECLARE_HOLDER_TYPE(T, pelton::torch_bindings::UnlockedPointer<T>, true)

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

std::chrono::milliseconds MillisecondsOf(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

c10::intrusive_ptr<::c10d::Backend> CreateProcessGroup(std::shared_ptr<Backend> backend,
                                                       const std::vector<int32_t>& ranks,
                                                       const std::string& name,
                                                       const std::string& title, double timeout_s,
                                                       ProcessGroup::OnClosed on_closed) {
  return ProcessGroup::Create(std::move(backend), Group::Of(ranks), {name, title},
                              MillisecondsOf(timeout_s), std::move(on_closed));
}

c10::intrusive_ptr<CoordinatorStore> CreateStore(std::shared_ptr<Backend> backend,
                                                 double timeout_s) {
  return c10::make_intrusive<CoordinatorStore>(std::move(backend), MillisecondsOf(timeout_s));
}

}  // namespace

void DefineC10d(py::module_& module) {
  // What torch.distributed asks of its own backends by name.
  py::class_<ProcessGroup, UnlockedPointer<ProcessGroup>, ::c10d::Backend>(module, "ProcessGroup")
      .def_property_readonly("options", &ProcessGroup::getBackendOptions)
      .def("_set_default_timeout", &ProcessGroup::setTimeout, py::arg("timeout"), NoGil());
  module.def("process_group", &CreateProcessGroup, py::arg("backend"), py::arg("ranks"),
             py::arg("name"), py::arg("backend_name"), py::arg("timeout_s"), py::arg("on_closed"),
             NoGil());
  py::class_<CoordinatorStore, c10::intrusive_ptr<CoordinatorStore>, ::c10d::Store>(module, "Store")
      .def(py::init(&CreateStore), py::arg("backend"), py::arg("timeout_s"));
}

}  // namespace pelton::torch_bindings
