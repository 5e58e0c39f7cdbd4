// A graph for each step, found by its name.
#ifndef PELTON_COMM_GRAPH_GRAPH_SEQUENCE_H_
#define PELTON_COMM_GRAPH_GRAPH_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/graph/graph.h"
#include "core/base/ids.h"
#include "core/registry/option_table.h"
#include "core/registry/registry.h"

namespace pelton {

// One graph after another, the same on all ranks. Steps count from 0.
// Threads: any. Owns: what its subclass says.
class GraphSequence {
 public:
  virtual ~GraphSequence() = default;
  virtual WorldSize size() const = 0;
  // The graph of step + period() is that of step; 0: it never repeats.
  virtual uint64_t period() const = 0;
  virtual Graph At(uint64_t step) const = 0;
};

// The same graph in every step. Threads: any. Owns: the graph.
class StaticGraph final : public GraphSequence {
 public:
  explicit StaticGraph(Graph graph) : graph_(std::move(graph)) {}
  WorldSize size() const override { return graph_.size(); }
  uint64_t period() const override { return 1; }
  Graph At(uint64_t) const override { return graph_; }

 private:
  const Graph graph_;
};

// In step t each rank sends to one of its neighbours in a graph, the t-th by distance upward from
// its own number, modulo how many it has. A rank that has k sources then takes the mean of k + 1
// tensors.
// Threads: any. Owns: the graph.
class OnePeerOf final : public GraphSequence {
 public:
  explicit OnePeerOf(Graph graph);
  WorldSize size() const override { return graph_.size(); }
  uint64_t period() const override { return period_; }
  Graph At(uint64_t step) const override;

 private:
  const Graph graph_;
  std::vector<std::vector<int32_t>> turns_;  // by rank: its destinations in their order
  uint64_t period_ = 1;
};

// One file comm/graph/<name>.cc implements it and registers it by name.
// Threads: one at a time. Owns: its options.
class GraphBuilder {
 public:
  virtual ~GraphBuilder() = default;
  // Binds every option that there is to the member that holds its value.
  virtual void BindOptions(OptionTable&) {}
  // Errors: InvalidArgument: there is no such graph of so many ranks, or the options do not fit.
  virtual absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const = 0;
};

using GraphBuilderFactory = std::unique_ptr<GraphBuilder> (*)();
using GraphRegistry = Registry<GraphBuilderFactory>;

// The graph or graphs `name` of `size` ranks. Errors: NotFound: lists the names there are;
// InvalidArgument: an option is unknown or does not fit; Build's.
absl::StatusOr<std::unique_ptr<GraphSequence>> MakeGraphs(const std::string& name, WorldSize size,
                                                          const Options& options);

// A graph that a builder knows to be one: Graph::Create, whose errors end the process.
Graph GraphOf(std::vector<double> own, std::vector<Graph::Edge> edges);
// A graph in which what a rank does depends on the distance to the other rank alone:
// W[i][(i + d) mod n] = weights[d]. Edges of weight 0 are left out.
Graph CirculantGraph(absl::Span<const double> weights);
// The same: each of `distances`, and 0, with equal weights.
Graph EqualCirculantGraph(WorldSize size, absl::Span<const int32_t> distances);

}  // namespace pelton

// One line beside a graph's code: REGISTER_GRAPH(name, "summary", Class);
#define REGISTER_GRAPH(name, summary, type)                           \
  static const bool pelton_registered_graph_##name [[maybe_unused]] = \
      ::pelton::GraphRegistry::Get().Register(                        \
          #name, summary,                                             \
          []() -> std::unique_ptr<::pelton::GraphBuilder> { return std::make_unique<type>(); })

#endif  // PELTON_COMM_GRAPH_GRAPH_SEQUENCE_H_
