#include <pybind11/stl.h>

#include <memory>
#include <vector>

#include "core/base/fork.h"
#include "torch_bindings/csrc/define.h"
#include "torch_bindings/csrc/python_windows.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;
using W = PythonWindow;

ProcessPtr<PythonWindows> OpenWindows(std::shared_ptr<Backend> backend,
                                      const std::vector<int32_t>& ranks) {
  return ProcessPtr<PythonWindows>(std::make_unique<PythonWindows>(std::move(backend), ranks));
}

ProcessPtr<W> Create(PythonWindows& self, const std::string& name, const at::Tensor& tensor,
                     const std::vector<int32_t>& sources, const std::vector<int32_t>& destinations,
                     bool zero_init) {
  return ProcessPtr<W>(self.Create(name, tensor, sources, destinations, zero_init));
}

}  // namespace

void DefineWindows(py::module_& module) {
  py::class_<W, ProcessPtr<W>>(module, "Window")
      .def_property_readonly("tensor", &W::tensor)
      .def_property_readonly("p", &W::p)
      .def("put", &W::Put, py::arg("tensor"), py::arg("destinations"), py::arg("own_weight"),
           py::arg("with_p"), NoGil())
      .def("accumulate", &W::Accumulate, py::arg("tensor"), py::arg("destinations"),
           py::arg("own_weight"), py::arg("with_p"), NoGil())
      .def("get", &W::Get, py::arg("sources"), NoGil())
      .def("update", &W::Update, py::arg("own_weight"), py::arg("sources"), py::arg("resets"),
           py::arg("with_p"), py::arg("target") = py::none(), NoGil())
      .def("versions", &W::Versions)
      .def("lock", &W::Lock, py::arg("peer"), py::arg("of_own"), NoGil())
      .def("unlock", &W::Unlock, py::arg("peer"), py::arg("of_own"), NoGil());
  py::class_<PythonWindows, ProcessPtr<PythonWindows>>(module, "Windows")
      .def(py::init(&OpenWindows), py::arg("backend"), py::arg("ranks"), NoGil())
      .def("create", &Create, py::arg("name"), py::arg("tensor"), py::arg("sources"),
           py::arg("destinations"), py::arg("zero_init"), NoGil())
      .def("barrier", &PythonWindows::Barrier, NoGil())
      .def("close", &PythonWindows::Close, NoGil());
}

}  // namespace pelton::torch_bindings
