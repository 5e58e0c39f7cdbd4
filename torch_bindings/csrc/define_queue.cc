#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fork.h"
#include "torch_bindings/csrc/define.h"
#include "torch_bindings/csrc/python_queue.h"
#include "torch_bindings/csrc/status_to_exception.h"
#include "torch_bindings/csrc/weight_bucket.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;
using Queue = PythonQueue;
using Name = std::optional<std::string>;
using Target = std::optional<at::Tensor>;
using Table = std::shared_ptr<WeightTable>;  // pybind11 holds no pointers to const
using QueueClass = py::class_<Queue, ProcessPtr<Queue>>;

Table MakeTable(double own, std::vector<Neighbor> sources, std::vector<Neighbor> destinations,
                bool sends_weights) {
  Neighborhood neighborhood{own, std::move(sources), std::move(destinations)};
  return std::const_pointer_cast<WeightTable>(
      ValueOrThrow(WeightTable::Create(std::move(neighborhood), {.sends_weights = sends_weights})));
}

ProcessPtr<Queue> Open(std::shared_ptr<Backend> backend, const std::vector<int32_t>& ranks,
                       const std::optional<at::Device>& device) {
  return ProcessPtr<Queue>(
      new Queue(std::move(backend), Group::Of(ranks), device.value_or(at::kCPU)));
}

// What Python gets of an operation: its handle, or what it waits for.
template <bool kWaits>
auto Returned(const Queue::Handle& handle) {
  if constexpr (kWaits) {
    return handle->Wait();
  } else {
    return handle;
  }
}

// Operations that are begun; with `kWaits` the same under names that end in "_now", waited for: one
// call from Python, and no handle.
template <bool kWaits>
void DefineOperations(QueueClass& queue) {
  const auto name_of = [](std::string name) { return name + (kWaits ? "_now" : ""); };
  queue
      .def(
          name_of("allreduce").c_str(),
          [](Queue& self, const at::Tensor& tensor, int op, bool in_place, Name name, Target target,
             Name shown_as) {
            return Returned<kWaits>(self.AllReduce({std::move(name), kWaits, std::move(shown_as)},
                                                   tensor, op, in_place, target));
          },
          py::arg("tensor"), py::arg("op"), py::arg("in_place"), py::arg("name"),
          py::arg("target") = py::none(), py::arg("shown_as") = py::none(), NoGil())
      .def(
          name_of("broadcast").c_str(),
          [](Queue& self, const at::Tensor& tensor, int root, bool in_place, Name name) {
            return Returned<kWaits>(
                self.Broadcast({std::move(name), kWaits}, tensor, root, in_place));
          },
          py::arg("tensor"), py::arg("root"), py::arg("in_place"), py::arg("name"), NoGil())
      .def(
          name_of("allgather").c_str(),
          [](Queue& self, const at::Tensor& tensor, Name name, Queue* host) {
            return Returned<kWaits>(self.AllGather({std::move(name), kWaits}, tensor, host));
          },
          py::arg("tensor"), py::arg("name"), py::arg("host") = py::none(), NoGil())
      .def(
          name_of("neighbor_allreduce").c_str(),
          [](Queue& self, const at::Tensor& tensor, const Table& table, Name name, Target target) {
            return Returned<kWaits>(
                self.NeighborAllReduce({std::move(name), kWaits}, tensor, table, target));
          },
          py::arg("tensor"), py::arg("table").none(false), py::arg("name"),
          py::arg("target") = py::none(), NoGil());
}

void DefineRendezvous(QueueClass& queue) {
  queue
      .def(
          "barrier",
          [](Queue& self, std::optional<double> timeout_s) {
            self.Barrier(timeout_s.has_value() ? absl::Seconds(*timeout_s) : self.timeout());
          },
          py::arg("timeout_s") = py::none(), NoGil())
      .def(
          "leave",
          [](Queue& self, const std::string& name, const std::string& reason, double timeout_s) {
            self.Leave(name, reason, absl::Seconds(timeout_s));
          },
          py::arg("name"), py::arg("reason"), py::arg("timeout_s"), NoGil());
}

void DefineNeighborOperations(QueueClass& queue) {
  queue
      .def(
          "neighbor_allgather",
          [](Queue& self, const at::Tensor& tensor, const Table& table, Name name, Queue* host) {
            return self.NeighborAllGather({std::move(name), false}, tensor, table, host);
          },
          py::arg("tensor"), py::arg("table").none(false), py::arg("name"),
          py::arg("host") = py::none(), NoGil())
      .def(
          "hierarchical_neighbor_allreduce",
          [](Queue& self, const at::Tensor& tensor, const Table& table, Queue& inner, Name name,
             Target target) {
            return self.HierarchicalNeighborAllReduce({std::move(name), false}, tensor, table,
                                                      inner, target);
          },
          py::arg("tensor"), py::arg("table").none(false), py::arg("inner"), py::arg("name"),
          py::arg("target") = py::none(), NoGil());
}

void DefineWeightBucket(py::module_& module) {
  py::class_<WeightBucket>(module, "WeightBucket")
      .def(py::init<std::vector<at::Tensor>>(), py::arg("parameters"), NoGil())
      .def_property_readonly("target", &WeightBucket::target)
      .def("fits", &WeightBucket::Fits)
      .def("gather", &WeightBucket::Gather, NoGil())
      .def("adopt", &WeightBucket::Adopt, NoGil());
}

}  // namespace

void DefineQueue(py::module_& module) {
  module.def("number_of_name", &NumberOf, py::arg("name"));
  py::class_<WeightTable, Table>(module, "WeightTable")
      .def(py::init(&MakeTable), py::arg("own"), py::arg("sources"), py::arg("destinations"),
           py::arg("sends_weights") = false);
  py::class_<PythonHandle, std::shared_ptr<PythonHandle>>(module, "Handle")
      .def("done", &PythonHandle::done)
      .def("wait", &PythonHandle::Wait, NoGil())
      .def("lengths", &PythonHandle::lengths);
  DefineWeightBucket(module);
  QueueClass queue(module, "Queue");
  queue
      .def(py::init(&Open), py::arg("backend"), py::arg("ranks"), py::arg("device") = py::none(),
           NoGil())
      .def("close", &Queue::Close, NoGil());
  DefineOperations<false>(queue);
  DefineOperations<true>(queue);
  DefineNeighborOperations(queue);
  DefineRendezvous(queue);
}

}  // namespace pelton::torch_bindings
