#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/graph/graph_sequence.h"
#include "torch_bindings/csrc/define.h"
#include "torch_bindings/csrc/status_to_exception.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;

using Edges = std::vector<std::tuple<int32_t, int32_t, double>>;
using GraphParts = std::pair<std::vector<double>, Edges>;
using OptionTexts = std::vector<std::array<std::string, 4>>;

GraphParts PartsOf(const Graph& graph) {
  GraphParts parts;
  parts.first.assign(graph.own().begin(), graph.own().end());
  for (const Graph::Edge& edge : graph.edges()) {
    parts.second.emplace_back(edge.source, edge.destination, edge.weight);
  }
  return parts;
}

std::unique_ptr<GraphSequence> Named(const std::string& name, int32_t size,
                                     const Options& options) {
  return ValueOrThrow(MakeGraphs(name, WorldSize(size), options));
}

std::unique_ptr<GraphSequence> OnePeer(std::vector<double> own, const Edges& edges) {
  std::vector<Graph::Edge> given;
  for (const auto& [source, destination, weight] : edges) {
    given.push_back({source, destination, weight});
  }
  return std::make_unique<OnePeerOf>(ValueOrThrow(Graph::Create(std::move(own), std::move(given))));
}

std::vector<std::tuple<std::string, std::string, OptionTexts>> Listed() {
  std::vector<std::tuple<std::string, std::string, OptionTexts>> listed;
  for (const GraphRegistry::Entry& entry : GraphRegistry::Get().List()) {
    const std::unique_ptr<GraphBuilder> builder = entry.factory();
    OptionTable table;
    builder->BindOptions(table);
    OptionTexts options;
    for (const OptionDescription& option : table.Describe()) {
      options.push_back({option.name, option.default_value, option.values, option.meaning});
    }
    listed.emplace_back(entry.name, entry.summary, std::move(options));
  }
  return listed;
}

}  // namespace

void DefineGraphs(py::module_& module) {
  py::class_<GraphSequence>(module, "Graphs")
      .def_property_readonly("size", [](const GraphSequence& self) { return self.size().value(); })
      .def_property_readonly("period", &GraphSequence::period)
      .def(
          "at", [](const GraphSequence& self, uint64_t step) { return PartsOf(self.At(step)); },
          py::arg("step"));
  module.def("make_graphs", &Named, py::arg("name"), py::arg("size"), py::arg("options"));
  module.def("one_peer_of", &OnePeer, py::arg("own"), py::arg("edges"));
  module.def("graphs", &Listed);
}

}  // namespace pelton::torch_bindings
