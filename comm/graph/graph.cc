#include "comm/graph/graph.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr double kRounding = 1e-12;

auto Ends(const Graph::Edge& edge) { return std::tuple(edge.source, edge.destination); }

std::string NameOf(const Graph::Edge& edge) {
  return absl::StrCat("the edge from rank ", edge.source, " to rank ", edge.destination);
}

absl::Status CheckEdge(const Graph::Edge& edge, int32_t size) {
  if (edge.source == edge.destination) {
    return absl::InvalidArgumentError(absl::StrCat(
        NameOf(edge), ": starts and ends at one rank; give it as the rank's own weight"));
  }
  if (std::min(edge.source, edge.destination) < 0 ||
      std::max(edge.source, edge.destination) >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(edge), ": ranks go from 0 to ", size - 1,
                     "; give own weights of more ranks, or leave the edge out"));
  }
  if (std::isfinite(edge.weight)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(NameOf(edge), ": its weight is ", edge.weight, ", must be finite"));
}

bool AreAllOne(const std::vector<double>& sums) {
  return std::all_of(sums.begin(), sums.end(),
                     [](double sum) { return std::abs(sum - 1) < kRounding; });
}

}  // namespace

absl::StatusOr<Graph> Graph::Create(std::vector<double> own, std::vector<Edge> edges) {
  if (own.empty())
    return absl::InvalidArgumentError("a graph needs a rank at least; give one own weight or more");
  for (size_t rank = 0; rank < own.size(); ++rank) {
    if (std::isfinite(own[rank])) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the own weight of rank ", rank, " is ", own[rank], ", must be finite"));
  }
  for (const Edge& edge : edges) {
    RETURN_IF_ERROR(CheckEdge(edge, static_cast<int32_t>(own.size())));
  }
  std::sort(edges.begin(), edges.end(),
            [](const Edge& a, const Edge& b) { return Ends(a) < Ends(b); });
  const auto twice = std::adjacent_find(
      edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return Ends(a) == Ends(b); });
  if (twice != edges.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(*twice), " is given twice; leave one out"));
  }
  return Graph(std::move(own), std::move(edges));
}

Neighborhood Graph::Of(Rank rank) const {
  Neighborhood found;
  found.own = own_[static_cast<size_t>(rank.value())];
  for (const Edge& edge : edges_) {
    if (edge.destination == rank.value()) {
      found.sources.push_back({Rank(edge.source), edge.weight});
    }
    if (edge.source == rank.value()) {
      found.destinations.push_back({Rank(edge.destination), edge.weight});
    }
  }
  return found;
}

bool Graph::TakesMeans() const {
  std::vector<double> sums = own_;
  for (const Edge& edge : edges_) sums[static_cast<size_t>(edge.destination)] += edge.weight;
  return AreAllOne(sums);
}

bool Graph::KeepsMean() const {
  std::vector<double> sums = own_;
  for (const Edge& edge : edges_) sums[static_cast<size_t>(edge.source)] += edge.weight;
  return AreAllOne(sums);
}

bool Graph::IsSymmetric() const {
  return std::all_of(edges_.begin(), edges_.end(), [this](const Edge& edge) {
    const Edge back = {edge.destination, edge.source, edge.weight};
    const auto found =
        std::lower_bound(edges_.begin(), edges_.end(), back,
                         [](const Edge& a, const Edge& b) { return Ends(a) < Ends(b); });
    return found != edges_.end() && *found == back;
  });
}

}  // namespace pelton
