#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/graph/graph_sequence.h"
#include "comm/topology/peer_source.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

std::unique_ptr<GraphSequence> Graphs(const std::string& name, int32_t size,
                                      const Options& options = {}) {
  auto graphs = MakeGraphs(name, WorldSize(size), options);
  EXPECT_TRUE(graphs.ok()) << graphs.status();
  return *std::move(graphs);
}

// Both ends of each edge know it, with one weight; and each rank takes a mean.
void ExpectConsistent(const std::vector<Neighborhood>& ranks) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    double sum = ranks[r].own;
    for (const Neighbor& source : ranks[r].sources) {
      sum += source.weight;
      const Neighbor end{Rank(static_cast<int32_t>(r)), source.weight};
      const auto& theirs = ranks[static_cast<size_t>(source.rank.value())].destinations;
      EXPECT_NE(std::find(theirs.begin(), theirs.end(), end), theirs.end());
    }
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

TEST(GraphNeighborsTest, FollowsEverySequenceOfGraphs) {
  const std::vector<std::pair<std::string, Options>> sequences = {
      {"ring", {}},
      {"one_peer_exponential", {}},
      {"exp2_machines", {{"ranks_each", "3"}}},
      {"inner_outer_ring", {{"ranks_each", "3"}}},
      {"inner_outer_expo2", {{"ranks_each", "3"}}},
  };
  for (const auto& [name, options] : sequences) {
    const auto reference = Graphs(name, 12, options);
    std::deque<GraphNeighbors> sources;
    for (int32_t r = 0; r < 12; ++r) sources.emplace_back(Graphs(name, 12, options), Rank(r));
    for (uint64_t step = 0; step < 20; ++step) {
      std::vector<Neighborhood> ranks;
      for (GraphNeighbors& source : sources) ranks.push_back(source.NeighborsAt(step));
      ExpectConsistent(ranks);
      EXPECT_EQ(ranks[5], reference->At(step).Of(Rank(5))) << name << ", step " << step;
    }
  }
}

TEST(GraphNeighborsTest, GivesOnePeerOfAnyGraph) {
  std::deque<GraphNeighbors> sources;
  for (int32_t r = 0; r < 5; ++r) {
    sources.emplace_back(std::make_unique<OnePeerOf>(Graphs("star", 5)->At(0)), Rank(r));
  }
  for (uint64_t step = 0; step < 9; ++step) {
    std::vector<Neighborhood> ranks;
    for (GraphNeighbors& source : sources) ranks.push_back(source.NeighborsAt(step));
    for (const Neighborhood& rank : ranks) EXPECT_EQ(rank.destinations.size(), 1u);
    ExpectConsistent(ranks);
  }
}

}  // namespace
}  // namespace pelton
