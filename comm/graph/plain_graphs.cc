// The graphs of textbooks.
//
// ring             to both sides, 1/3 each and a rank's own; or to one side, 1/2 each. Two ranks:
// 1/2. star             every rank with a centre: W = 1/n on all edges and for the centre itself,
// the
//                  others' own 1 - 1/n.
// mesh_grid        rows and columns without ends joined; W[i][j] = 1 / max(a_i, a_j), where a
// rank's
//                  a is one more than it has neighbours (Metropolis), and its own what is left
//                  of 1.
// fully_connected  1/n everywhere.
// Source: BlueFog's topology_util.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "comm/graph/graph_sequence.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Threads: as GraphBuilder. Owns: its option.
class Ring final : public GraphBuilder {
 public:
  void BindOptions(OptionTable& table) override {
    table.Choice("sides", &sides_, {"both", "left", "right"},
                 "where a rank sends: left is to the rank below");
  }
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    const int32_t n = size.value();
    std::vector<int32_t> distances;
    if (n > 1 && sides_ != "left") distances.push_back(1);
    if (n > 1 && (sides_ == "left" || (sides_ == "both" && n > 2))) distances.push_back(n - 1);
    return std::make_unique<StaticGraph>(EqualCirculantGraph(size, distances));
  }

 private:
  std::string sides_ = "both";
};

// Threads: as GraphBuilder. Owns: its option.
class Star final : public GraphBuilder {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("center", &center_, 0, "the rank in the middle");
  }
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    const int32_t n = size.value();
    if (center_ >= static_cast<uint64_t>(n)) {
      return absl::InvalidArgumentError(
          absl::StrCat("option center is '", center_, "', not a rank from 0 to ", n - 1));
    }
    const auto center = static_cast<int32_t>(center_);
    const double weight = 1.0 / n;
    std::vector<double> own(static_cast<size_t>(n), 1 - weight);
    own[center_] = weight;
    std::vector<Graph::Edge> edges;
    for (int32_t rank = 0; rank < n; ++rank) {
      if (rank == center) continue;
      edges.push_back({center, rank, weight});
      edges.push_back({rank, center, weight});
    }
    ASSIGN_OR_RETURN(Graph graph, Graph::Create(std::move(own), std::move(edges)));
    return std::make_unique<StaticGraph>(std::move(graph));
  }

 private:
  uint64_t center_ = 0;
};

struct Shape {
  int32_t rows;
  int32_t columns;
};

// The factors of `size` that are closest to each other.
Shape ClosestShape(int32_t size) {
  Shape found = {1, size};
  for (int32_t rows = 1; rows * rows <= size; ++rows) {
    if (size % rows == 0) found = {rows, size / rows};
  }
  return found;
}

// Both ends of every edge of a grid whose ranks are numbered row by row.
std::vector<std::pair<int32_t, int32_t>> GridEdges(Shape shape) {
  std::vector<std::pair<int32_t, int32_t>> edges;
  for (int32_t rank = 0; rank < shape.rows * shape.columns; ++rank) {
    if (rank % shape.columns + 1 < shape.columns) edges.push_back({rank, rank + 1});
    if (rank / shape.columns + 1 < shape.rows) edges.push_back({rank, rank + shape.columns});
  }
  return edges;
}

// Threads: as GraphBuilder. Owns: its option.
class MeshGrid final : public GraphBuilder {
 public:
  void BindOptions(OptionTable& table) override {
    table.Add({"shape", "auto", "auto, or rows x columns, as 2x3",
               "auto: the two factors of the number of ranks that are closest to each other"},
              [this](absl::string_view text) { return ReadShape(text); });
  }
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    const Shape shape = shape_.rows == 0 ? ClosestShape(size.value()) : shape_;
    if (shape.rows * shape.columns != size.value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("option shape is ", shape.rows, "x", shape.columns,
                       ", must have as many places as there are ranks"));
    }
    const auto ends = GridEdges(shape);
    std::vector<int32_t> sizes(static_cast<size_t>(size.value()), 1);  // of neighbourhoods
    for (const auto& [a, b] : ends) {
      ++sizes[static_cast<size_t>(a)];
      ++sizes[static_cast<size_t>(b)];
    }
    std::vector<double> own(sizes.size(), 1);
    std::vector<Graph::Edge> edges;
    for (const auto& [a, b] : ends) {
      const double weight =
          1.0 / std::max(sizes[static_cast<size_t>(a)], sizes[static_cast<size_t>(b)]);
      edges.push_back({a, b, weight});
      edges.push_back({b, a, weight});
      own[static_cast<size_t>(a)] -= weight;
      own[static_cast<size_t>(b)] -= weight;
    }
    ASSIGN_OR_RETURN(Graph graph, Graph::Create(std::move(own), std::move(edges)));
    return std::make_unique<StaticGraph>(std::move(graph));
  }

 private:
  bool ReadShape(absl::string_view text) {
    if (text == "auto") {
      shape_ = {0, 0};
      return true;
    }
    const std::vector<absl::string_view> parts = absl::StrSplit(text, 'x');
    Shape shape{};
    const bool fits = parts.size() == 2 && absl::SimpleAtoi(parts[0], &shape.rows) &&
                      absl::SimpleAtoi(parts[1], &shape.columns) && shape.rows > 0 &&
                      shape.columns > 0 && shape.rows <= (1 << 15) && shape.columns <= (1 << 15);
    if (fits) shape_ = shape;
    return fits;
  }

  Shape shape_ = {0, 0};  // 0: auto
};

// Threads: as GraphBuilder. Owns: nothing.
class FullyConnected final : public GraphBuilder {
 public:
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    const std::vector<double> weights(static_cast<size_t>(size.value()), 1.0 / size.value());
    return std::make_unique<StaticGraph>(CirculantGraph(weights));
  }
};

REGISTER_GRAPH(ring, "neighbours on both sides, or on one", Ring);
REGISTER_GRAPH(star, "every rank with one in the middle", Star);
REGISTER_GRAPH(mesh_grid, "rows and columns, with Metropolis weights", MeshGrid);
REGISTER_GRAPH(fully_connected, "everyone with everyone", FullyConnected);

}  // namespace
}  // namespace pelton
