#include <pybind11/stl.h>

#include "core/base/fork.h"
#include "torch_bindings/csrc/define.h"
#include "torch_bindings/csrc/python_communicator.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;
using C = PythonCommunicator;
using NoGil = py::call_guard<py::gil_scoped_release>;

using CommunicatorClass = py::class_<C, ProcessPtr<C>>;

void DefineReductions(CommunicatorClass& communicator) {
  communicator.def_static("check_reducible", &C::CheckReducible, py::arg("dtype"), py::arg("op"))
      .def("allreduce", &C::AllReduce, py::arg("send"), py::arg("recv"), py::arg("op"), NoGil())
      .def("reduce", &C::Reduce, py::arg("send"), py::arg("recv"), py::arg("dst"), py::arg("op"),
           NoGil())
      .def("reduce_scatter", &C::ReduceScatter, py::arg("send"), py::arg("recv"), py::arg("op"),
           NoGil());
}

void DefineExchanges(CommunicatorClass& communicator) {
  communicator.def("allgather", &C::AllGather, py::arg("send"), py::arg("recv"), NoGil())
      .def("broadcast", &C::Broadcast, py::arg("tensor"), py::arg("src"), NoGil())
      .def("gather", &C::Gather, py::arg("send"), py::arg("recv"), py::arg("dst"), NoGil())
      .def("scatter", &C::Scatter, py::arg("send"), py::arg("recv"), py::arg("src"), NoGil())
      .def("alltoall", &C::AllToAll, py::arg("send"), py::arg("recv"), NoGil())
      .def("alltoall_v", &C::AllToAllV, py::arg("send"), py::arg("send_counts"),
           py::arg("send_displs"), py::arg("recv"), py::arg("recv_counts"), py::arg("recv_displs"),
           NoGil())
      .def("send", &C::Send, py::arg("tensor"), py::arg("dst"), py::arg("tag") = 0, NoGil())
      .def("recv", &C::Recv, py::arg("tensor"), py::arg("src"), py::arg("tag") = 0, NoGil())
      .def("barrier", &C::Barrier, NoGil());
}

}  // namespace

void DefineCommunicator(py::module_& module) {
  CommunicatorClass communicator(module, "Communicator");
  communicator.def("rank", &C::rank)
      .def("nranks", &C::world_size)
      .def("device_id", [](const C&) { return -1; })  // CPU
      .def_property_readonly("cuda_stream", [](const C&) { return 0; })
      .def("abort", &C::Abort, NoGil())
      .def("check_abort", &C::aborted)
      .def("close", &C::Close, NoGil());
  DefineReductions(communicator);
  DefineExchanges(communicator);
}

}  // namespace pelton::torch_bindings
