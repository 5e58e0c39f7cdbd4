#include <string>

#include "comm/graph/graph.h"
#include "comm/graph/graph_sequence.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text) { return ReadGraph(text).status().ToString(); }

TEST(GraphTextTest, ReadsEdgesAndOwnWeights) {
  const Graph read = *ReadGraph("1>0:0.25  0>0:0.75\n0>1:0.25 1>1:0.75");
  EXPECT_EQ(read, *Graph::Create({0.75, 0.75}, {{0, 1, 0.25}, {1, 0, 0.25}}));
}

TEST(GraphTextTest, AnOwnWeightThatIsNotWrittenIsZero) {
  EXPECT_EQ(*ReadGraph("0>1:1 1>0:1"), *Graph::Create({0, 0}, {{0, 1, 1}, {1, 0, 1}}));
}

TEST(GraphTextTest, WithoutWeightsEveryRankTakesThePlainMean) {
  const Graph read = *ReadGraph("0>1 1>2 2>0 0>2");
  const double third = 1.0 / 3;
  EXPECT_EQ(read, *Graph::Create({0.5, 0.5, third},
                                 {{0, 1, 0.5}, {0, 2, third}, {1, 2, third}, {2, 0, 0.5}}));
  EXPECT_EQ(*ReadGraph("0>0 0>1 1>0"), *ReadGraph("0>1 1>0"));
}

TEST(GraphTextTest, WhatIsWrittenIsReadBitByBit) {
  for (const char* name : {"ring", "star", "mesh_grid", "exponential"}) {
    for (const int32_t size : {1, 2, 3, 7, 12}) {
      const Graph graph = (*MakeGraphs(name, WorldSize(size), {}))->At(0);
      EXPECT_EQ(*ReadGraph(WriteGraph(graph)), graph) << name << " of " << size;
    }
  }
  const Graph odd = *Graph::Create({0.1 + 0.2, 1e-300, -0.0}, {{0, 2, 1.0 / 3}});
  EXPECT_EQ(*ReadGraph(WriteGraph(odd)), odd);
}

TEST(GraphTextTest, NamesTheEdgeThatDoesNotFit) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("there is no edge"));
  for (const char* word :
       {"0-1:0.5", "0>1:half", "0>1:", "0>", "a>1", "-1>0", "0>1>2", "0>9999999"}) {
    EXPECT_THAT(ErrorOf(word), HasSubstr("'" + std::string(word) + "' is no edge")) << word;
  }
  EXPECT_THAT(ErrorOf("0>1:0.5 1>0"), HasSubstr("'0>1:0.5' has a weight and '1>0' has none"));
  EXPECT_THAT(ErrorOf("0>1 1>0:1"), HasSubstr("'0>1' has none and '1>0:1' has one"));
  EXPECT_THAT(ErrorOf("0>1:1 0>1:1"), HasSubstr("from rank 0 to rank 1 is given twice"));
  EXPECT_THAT(ErrorOf("1>1:1 0>1:1 1>1:1"), HasSubstr("own weight of rank 1 is given twice"));
  EXPECT_THAT(ErrorOf("0>1:nan"), HasSubstr("its weight is nan"));
}

TEST(GivenGraphTest, IsTheSameInEveryStepAndOfItsNumberOfRanksAlone) {
  const Graph ring = (*MakeGraphs("ring", WorldSize(4), {}))->At(0);
  Options options = GivenGraph(ring, "base");
  EXPECT_EQ(options.at("base"), "given");
  const Options edges = {{"edges", options.at("base.edges")}};
  const auto graphs = *MakeGraphs("given", WorldSize(4), edges);
  EXPECT_EQ(graphs->period(), 1u);
  EXPECT_EQ(graphs->At(7), ring);
  EXPECT_THAT(MakeGraphs("given", WorldSize(3), edges).status().ToString(),
              HasSubstr("graph given of 3 ranks: it was given by hand for 4 ranks, and the group "
                        "has 3; give one for 3 ranks"));
  EXPECT_THAT(MakeGraphs("given", WorldSize(3), {}).status().ToString(),
              HasSubstr("option edges: there is no edge"));
}

}  // namespace
}  // namespace pelton
