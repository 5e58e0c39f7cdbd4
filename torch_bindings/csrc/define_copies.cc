#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "torch_bindings/csrc/define.h"
#include "torch_bindings/csrc/tensor_copies.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

}  // namespace

void DefineCopies(py::module_& module) {
  using C = TensorCopies;
  py::class_<C, ProcessPtr<C>>(module, "TensorCopies")
      .def(py::init([] {
        WatchForks();
        return ProcessPtr<C>(std::make_unique<C>());
      }))
      .def_static("may_copy", &C::MayCopy, py::arg("tensor"))
      .def("begin", &C::Begin, py::arg("parts"), py::arg("target"), NoGil())
      .def_property_readonly("is_copied", &C::is_copied)
      .def(
          "finish",
          [](C& self, double timeout_s) {
            return self.Finish(Clock::Real().Now() + absl::Seconds(timeout_s));
          },
          py::arg("timeout_s"), NoGil())
      .def("abandon", &C::Abandon, NoGil());
}

}  // namespace pelton::torch_bindings
