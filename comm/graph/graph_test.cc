#include "comm/graph/graph.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GraphTest, TellsEachRankItsSourcesAndDestinationsInOrder) {
  const Graph graph = *Graph::Create({0.5, 0.25, 1}, {{2, 1, 0.5}, {0, 2, 0}, {0, 1, 0.25}});
  EXPECT_EQ(graph.size(), WorldSize(3));
  const Neighborhood first = graph.Of(Rank(0));
  EXPECT_EQ(first.own, 0.5);
  EXPECT_TRUE(first.sources.empty());
  EXPECT_THAT(first.destinations, ElementsAre(Neighbor{Rank(1), 0.25}, Neighbor{Rank(2), 0}));
  const Neighborhood second = graph.Of(Rank(1));
  EXPECT_THAT(second.sources, ElementsAre(Neighbor{Rank(0), 0.25}, Neighbor{Rank(2), 0.5}));
  EXPECT_TRUE(second.destinations.empty());
}

TEST(GraphTest, TheOrderInWhichEdgesAreGivenDoesNotMatter) {
  EXPECT_EQ(*Graph::Create({1, 1}, {{0, 1, 0.5}, {1, 0, 2}}),
            *Graph::Create({1, 1}, {{1, 0, 2}, {0, 1, 0.5}}));
  EXPECT_NE(*Graph::Create({1, 1}, {{0, 1, 0.5}}), *Graph::Create({1, 1}, {{0, 1, 0.75}}));
}

TEST(GraphTest, KnowsWhatItsWeightsAddUpTo) {
  const Graph takes = *Graph::Create({1, 0.5}, {{0, 1, 0.5}});
  EXPECT_TRUE(takes.TakesMeans());
  EXPECT_FALSE(takes.KeepsMean());
  EXPECT_FALSE(takes.IsSymmetric());
  const Graph keeps = *Graph::Create({0.5, 1}, {{0, 1, 0.5}});
  EXPECT_FALSE(keeps.TakesMeans());
  EXPECT_TRUE(keeps.KeepsMean());
  const Graph both = *Graph::Create({0.75, 0.75}, {{0, 1, 0.25}, {1, 0, 0.25}});
  EXPECT_TRUE(both.TakesMeans() && both.KeepsMean() && both.IsSymmetric());
  EXPECT_FALSE(Graph::Create({1, 1}, {{0, 1, 0.25}, {1, 0, 0.5}})->IsSymmetric());
}

TEST(GraphTest, RefusesWhatIsNoGraph) {
  const auto error = [](std::vector<double> own, std::vector<Graph::Edge> edges) {
    return Graph::Create(std::move(own), std::move(edges)).status().ToString();
  };
  EXPECT_THAT(error({}, {}), HasSubstr("a rank at least"));
  EXPECT_THAT(error({1, NAN}, {}), HasSubstr("own weight of rank 1 is nan"));
  EXPECT_THAT(error({1, 1}, {{1, 1, 0.5}}),
              HasSubstr("from rank 1 to rank 1: starts and ends at one"));
  EXPECT_THAT(error({1, 1}, {{0, 2, 0.5}}),
              HasSubstr("from rank 0 to rank 2: ranks go from 0 to 1"));
  EXPECT_THAT(error({1, 1}, {{-1, 0, 0.5}}), HasSubstr("from rank -1 to rank 0"));
  EXPECT_THAT(error({1, 1}, {{0, 1, INFINITY}}), HasSubstr("its weight is inf"));
  EXPECT_THAT(error({1, 1}, {{0, 1, 1}, {0, 1, 2}}), HasSubstr("is given twice"));
}

}  // namespace
}  // namespace pelton
