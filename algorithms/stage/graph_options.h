// Over which graph an algorithm's ranks exchange, and how often.
#ifndef PELTON_ALGORITHMS_STAGE_GRAPH_OPTIONS_H_
#define PELTON_ALGORITHMS_STAGE_GRAPH_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/graph/graph.h"
#include "comm/graph/graph_sequence.h"
#include "core/base/ids.h"
#include "core/registry/option_table.h"
#include "core/round/schedule.h"

namespace pelton {

// Names of the graphs that there are, for an option that chooses one, after `others`.
std::vector<std::string> GraphNames(std::vector<std::string> others = {});

// What an algorithm over a graph is told of it. The three ways to make the graph are the three
// demands that the theory of an algorithm may have; each refuses the graphs that do not meet it.
// The graph `given` is a user's own (GivenGraph in comm/graph/graph_text.h), so that more is asked
// of it: no weight below 0, and a way from every rank to every other unless some rounds are global.
// Threads: as Algorithm. Owns: its options.
class GraphOptions {
 public:
  // Of every algorithm over a graph.
  static constexpr absl::string_view kWhyNotHierarchical =
      "the graph is one of ranks, and names each neighbour; low_precision_decentralized and "
      "decentralized have hosts for neighbours";

  explicit GraphOptions(std::string name = "ring", uint64_t interval = 1)
      : name_(std::move(name)), interval_(interval) {}
  // Of an algorithm that has read the graph's name and options from options of its own, and that
  // takes a mean of all ranks each `global_interval` rounds.
  static GraphOptions Named(std::string option, std::string name, Options graph_options,
                            uint64_t global_interval) {
    GraphOptions options(std::move(name));
    options.option_ = std::move(option);
    options.options_ = std::move(graph_options);
    options.global_interval_ = global_interval;
    return options;
  }

  // The options graph, graph.<option>, interval and global_interval; BindGraph: the first two, of
  // an algorithm whose rounds are at no step.
  void Bind(OptionTable& table);
  void BindGraph(OptionTable& table);
  // After an optimizer's step, each `interval` steps, of weights.
  Schedule schedule() const;
  // Rounds from one exact mean of all ranks to the next; 0: there is none.
  uint64_t global_interval() const { return global_interval_; }

  // As the graphs are named. In each of their steps every rank takes a mean, and the mean over all
  // ranks stays what it is. Errors: InvalidArgument: that is not so of the graph.
  absl::StatusOr<std::unique_ptr<GraphSequence>> Balanced(WorldSize size) const;
  // The same in every step, and symmetric, besides. Errors: as Balanced.
  absl::StatusOr<Graph> StaticSymmetric(WorldSize size) const;
  // Of StaticSymmetric's graph, for an algorithm that takes means as they are over it; Balanced
  // does so itself. Errors: InvalidArgument: ranks would take turns for ever, as two that swap do.
  absl::Status CheckMixes(const Graph& graph) const;
  // Whichever graphs: their edges count and not their weights. Each rank gives equal shares to
  // itself and to its destinations, so that what it gives adds up to 1 (columns, in the words of
  // the papers), but what a rank gets need not. Errors: those of MakeGraphs.
  absl::StatusOr<std::unique_ptr<GraphSequence>> EqualShares(WorldSize size) const;

 private:
  absl::StatusOr<std::unique_ptr<GraphSequence>> Make(WorldSize size) const;
  // What is asked of a user's graph beside, with the weights that count. Another's passes.
  absl::Status CheckGiven(const Graph& graph) const;
  absl::Status Refusal(WorldSize size, const std::string& reason) const;

  std::string option_ = "graph";
  std::string name_;
  Options options_;
  uint64_t interval_;
  uint64_t global_interval_ = 0;
};

// The ranks with an edge to a rank, and those with one from it, in any step; ascending.
// Threads: a value. Owns: its lists.
struct EdgesInAnyStep {
  std::vector<Rank> sources;
  std::vector<Rank> destinations;
};
// Of graphs that never repeat: all others.
EdgesInAnyStep EdgesInAnyStepOf(Rank rank, const GraphSequence& graphs);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_GRAPH_OPTIONS_H_
