#include "torch_bindings/csrc/c10d/bind.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/backend.h"
#include "torch_bindings/csrc/c10d/process_group.h"
#include "torch_bindings/csrc/c10d/store.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

std::chrono::milliseconds MillisecondsOf(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

c10::intrusive_ptr<::c10d::Backend> CreateProcessGroup(std::shared_ptr<Backend> backend,
                                                       const std::vector<int32_t>& ranks,
                                                       const std::string& name, double timeout_s,
                                                       ProcessGroup::OnClosed on_closed) {
  Group group{{}, Generation(1)};
  for (int32_t rank : ranks) group.members.emplace_back(rank);
  return ProcessGroup::Create(std::move(backend), group, name, MillisecondsOf(timeout_s),
                              std::move(on_closed));
}

c10::intrusive_ptr<CoordinatorStore> CreateStore(std::shared_ptr<Backend> backend,
                                                 double timeout_s) {
  return c10::make_intrusive<CoordinatorStore>(std::move(backend), MillisecondsOf(timeout_s));
}

}  // namespace

void DefineC10d(py::module_& module) {
  module.def("process_group", &CreateProcessGroup, py::arg("backend"), py::arg("ranks"),
             py::arg("name"), py::arg("timeout_s"), py::arg("on_closed"), NoGil());
  py::class_<CoordinatorStore, c10::intrusive_ptr<CoordinatorStore>, ::c10d::Store>(module, "Store")
      .def(py::init(&CreateStore), py::arg("backend"), py::arg("timeout_s"));
}

}  // namespace pelton::torch_bindings
