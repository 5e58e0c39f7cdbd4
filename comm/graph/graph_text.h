// A graph as text, so that it can be the value of an option.
#ifndef PELTON_COMM_GRAPH_GRAPH_TEXT_H_
#define PELTON_COMM_GRAPH_GRAPH_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/graph/graph.h"
#include "core/registry/option_table.h"

namespace pelton {

// Of the registered graph that is made of its option edges.
inline constexpr absl::string_view kGivenGraph = "given";

// "0>0:0.5 0>1:0.5 1>0:0.5 1>1:0.5": by spaces, each edge as SOURCE>DESTINATION:WEIGHT, a rank's
// own weight as one from the rank to itself; what is not there is 0. The ranks are those from 0 to
// the largest number. Where no edge has a weight, every rank takes the plain mean of itself and its
// sources. Errors: InvalidArgument: a word is no such edge, weights are given to some edges alone,
// an edge is given twice; those of Graph::Create; each names the edge.
absl::StatusOr<Graph> ReadGraph(absl::string_view text);
// What ReadGraph makes the same graph of, bit by bit.
std::string WriteGraph(const Graph& graph);

// The options by which an algorithm over graphs takes `graph` (InvalidArgument on another number of
// ranks): {"graph", "given"} and {"graph.edges", ...}. `option`: the name of the algorithm's
// option, which is base for slowmo.
Options GivenGraph(const Graph& graph, const std::string& option = "graph");

}  // namespace pelton

#endif  // PELTON_COMM_GRAPH_GRAPH_TEXT_H_
