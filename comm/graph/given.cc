// The graph that a user gives by hand, the same in every step. It is one of so many ranks, and no
// other number of them has it.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/graph/graph.h"
#include "comm/graph/graph_sequence.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Threads: as GraphBuilder. Owns: its option.
class Given final : public GraphBuilder {
 public:
  void BindOptions(OptionTable& table) override {
    table.Add({"edges", "", "SOURCE>DESTINATION:WEIGHT, as 0>0:0.5 0>1:0.5 1>0:0.5 1>1:0.5",
               "all edges, and each rank's own weight as an edge to itself; without weights all "
               "take plain means"},
              [this](absl::string_view text) {
                edges_ = std::string(text);
                return true;
              });
  }
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    absl::StatusOr<Graph> graph = ReadGraph(edges_);
    RETURN_IF_ERROR(Annotate(graph.status(), "option edges"));
    if (graph->size() == size) return std::make_unique<StaticGraph>(*std::move(graph));
    return absl::InvalidArgumentError(
        absl::StrCat("it was given by hand for ", graph->size().value(),
                     " ranks, and the group has ", size.value(), "; give one for ", size.value(),
                     " ranks, or name a graph, which is made anew for every number of ranks"));
  }

 private:
  std::string edges_;
};

REGISTER_GRAPH(given, "given by hand, edge by edge", Given);

}  // namespace
}  // namespace pelton
