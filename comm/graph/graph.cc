#include "comm/graph/graph.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

// A number beyond it would ask for memory without end.
constexpr int32_t kMostRanks = 1 << 20;

// An edge as it is written. Threads: a value. Owns: nothing.
struct Word {
  absl::string_view text;
  int32_t source;
  int32_t destination;
  std::optional<double> weight;
};

std::string Quoted(absl::string_view text) { return absl::StrCat("'", text, "'"); }

bool ReadRank(absl::string_view text, int32_t* rank) {
  const bool is_number =
      !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  return is_number && absl::SimpleAtoi(text, rank) && *rank < kMostRanks;
}

absl::StatusOr<Word> ReadWord(absl::string_view text) {
  Word word = {.text = text, .source = 0, .destination = 0, .weight = std::nullopt};
  const std::pair<absl::string_view, absl::string_view> ends_and_weight =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  const std::vector<absl::string_view> ends = absl::StrSplit(ends_and_weight.first, '>');
  bool fits =
      ends.size() == 2 && ReadRank(ends[0], &word.source) && ReadRank(ends[1], &word.destination);
  if (fits && text.size() > ends_and_weight.first.size()) {
    double weight = 0;
    fits = absl::SimpleAtod(ends_and_weight.second, &weight);
    word.weight = weight;
  }
  if (fits) return word;
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(text),
                   " is no edge; write SOURCE>DESTINATION:WEIGHT, as 0>1:0.5, or all edges without "
                   "weights, as 0>1, for plain means"));
}

absl::Status CheckAllHaveWeights(const std::vector<Word>& words) {
  const bool has_weights = words[0].weight.has_value();
  for (const Word& word : words) {
    if (word.weight.has_value() == has_weights) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(words[0].text), has_weights ? " has a weight and " : " has none and ",
                     Quoted(word.text), has_weights ? " has none" : " has one",
                     "; give weights to all edges or to none"));
  }
  return absl::OkStatus();
}

// Each rank's own weight and its sources' become equal.
void TakePlainMeans(std::vector<double>& own, std::vector<Graph::Edge>& edges) {
  std::fill(own.begin(), own.end(), 1);
  for (const Graph::Edge& edge : edges) own[static_cast<size_t>(edge.destination)] += 1;
  for (double& shares : own) shares = 1 / shares;
  for (Graph::Edge& edge : edges) edge.weight = own[static_cast<size_t>(edge.destination)];
}

// The fewest digits that are read as the same number.
std::string TextOf(double weight) {
  char text[32];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof(text), "%.*g", digits, weight);
    double read = 0;
    if (absl::SimpleAtod(text, &read) && read == weight) break;
  }
  return text;
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

absl::StatusOr<Graph> ReadGraph(absl::string_view text) {
  std::vector<Word> words;
  int32_t largest = -1;
  for (const absl::string_view part :
       absl::StrSplit(text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty())) {
    ASSIGN_OR_RETURN(const Word word, ReadWord(part));
    words.push_back(word);
    largest = std::max({largest, word.source, word.destination});
  }
  if (words.empty()) {
    return absl::InvalidArgumentError("there is no edge; write them as '0>1:0.5 1>0:0.5 ...'");
  }
  RETURN_IF_ERROR(CheckAllHaveWeights(words));
  std::vector<double> own(static_cast<size_t>(largest) + 1);
  std::vector<bool> has_own(own.size());
  std::vector<Graph::Edge> edges;
  for (const Word& word : words) {
    const auto source = static_cast<size_t>(word.source);
    if (word.source != word.destination) {
      edges.push_back({word.source, word.destination, word.weight.value_or(0)});
      continue;
    }
    if (has_own[source]) {
      return absl::InvalidArgumentError(
          absl::StrCat("the own weight of rank ", word.source, " is given twice; leave one out"));
    }
    has_own[source] = true;
    own[source] = word.weight.value_or(0);
  }
  if (!words[0].weight.has_value()) TakePlainMeans(own, edges);
  return Graph::Create(std::move(own), std::move(edges));
}

std::string WriteGraph(const Graph& graph) {
  std::string text;
  const auto add = [&text](int32_t source, int32_t destination, double weight) {
    absl::StrAppend(&text, text.empty() ? "" : " ", source, ">", destination, ":", TextOf(weight));
  };
  for (int32_t rank = 0; rank < graph.size().value(); ++rank) {
    add(rank, rank, graph.own()[static_cast<size_t>(rank)]);
  }
  for (const Graph::Edge& edge : graph.edges()) add(edge.source, edge.destination, edge.weight);
  return text;
}

Options GivenGraph(const Graph& graph, const std::string& option) {
  return {{option, std::string(kGivenGraph)}, {absl::StrCat(option, ".edges"), WriteGraph(graph)}};
}

}  // namespace pelton
