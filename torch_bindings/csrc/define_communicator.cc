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

using Kind = OperationKind;

// Of collectives of two tensors, by what else they take.
auto Exchange(Kind kind) {
  return [kind](C& self, const at::Tensor& send, const at::Tensor& recv) {
    self.Collective(kind, send, recv);
  };
}
auto Reduction(Kind kind) {
  return [kind](C& self, const at::Tensor& send, const at::Tensor& recv, int op) {
    self.Collective(kind, send, recv, Rank(0), op);
  };
}
auto Rooted(Kind kind) {
  return [kind](C& self, const at::Tensor& send, const at::Tensor& recv, int root) {
    self.Collective(kind, send, recv, Rank(root));
  };
}
void Reduce(C& self, const at::Tensor& send, const at::Tensor& recv, int dst, int op) {
  self.Collective(Kind::kReduce, send, recv, Rank(dst), op);
}
void Broadcast(C& self, const at::Tensor& tensor, int src) {
  self.Collective(Kind::kBroadcast, {}, tensor, Rank(src));
}
void Barrier(C& self) { self.Collective(Kind::kBarrier, {}, {}); }

void DefineReductions(CommunicatorClass& communicator) {
  communicator.def_static("check_reducible", &C::CheckReducible, py::arg("dtype"), py::arg("op"))
      .def("allreduce", Reduction(Kind::kAllReduce), py::arg("send"), py::arg("recv"),
           py::arg("op"), NoGil())
      .def("reduce", &Reduce, py::arg("send"), py::arg("recv"), py::arg("dst"), py::arg("op"),
           NoGil())
      .def("reduce_scatter", Reduction(Kind::kReduceScatter), py::arg("send"), py::arg("recv"),
           py::arg("op"), NoGil());
}

void DefineExchanges(CommunicatorClass& communicator) {
  communicator
      .def("allgather", Exchange(Kind::kAllGather), py::arg("send"), py::arg("recv"), NoGil())
      .def("broadcast", &Broadcast, py::arg("tensor"), py::arg("src"), NoGil())
      .def("gather", Rooted(Kind::kGather), py::arg("send"), py::arg("recv"), py::arg("dst"),
           NoGil())
      .def("scatter", Rooted(Kind::kScatter), py::arg("send"), py::arg("recv"), py::arg("src"),
           NoGil())
      .def("alltoall", Exchange(Kind::kAllToAll), py::arg("send"), py::arg("recv"), NoGil())
      .def("alltoall_v", &C::AllToAllV, py::arg("send"), py::arg("send_counts"),
           py::arg("send_displs"), py::arg("recv"), py::arg("recv_counts"), py::arg("recv_displs"),
           NoGil())
      .def("send", &C::Send, py::arg("tensor"), py::arg("dst"), py::arg("tag") = 0, NoGil())
      .def("recv", &C::Recv, py::arg("tensor"), py::arg("src"), py::arg("tag") = 0, NoGil())
      .def("barrier", &Barrier, NoGil());
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
