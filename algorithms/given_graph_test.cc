// Graphs given by hand, to every algorithm over a graph: as the same graph by its name, bit by bit,
// and what is refused.
#include <string>
#include <utility>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/test_graph_world.h"
#include "comm/graph/graph.h"
#include "comm/graph/graph_sequence.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

// An algorithm over a graph, and its option for that.
struct OverGraph {
  std::string name;
  std::string option = "graph";
  AlgorithmOptions others = {};
};

std::vector<OverGraph> AllOverGraphs() {
  std::vector<OverGraph> found;
  for (const AlgorithmRegistry::Entry& entry : AlgorithmRegistry::Get().List()) {
    const AlgorithmDescription description = *DescriptionOf(entry.name);
    for (const OptionDescription& option : description.options) {
      if (option.name == "graph.<option>") found.push_back({entry.name});
      if (option.name == "base.<option>")
        found.push_back({entry.name, "base", {{"interval", "3"}}});
    }
  }
  return found;
}

GraphCase Case(const OverGraph& one, const Options& graph, int32_t size) {
  AlgorithmOptions options = one.others;
  if (one.name == "noloco") options["interval"] = "1";
  for (const auto& [name, value] : graph) options[name] = value;
  return {.algorithm = one.name, .options = std::move(options), .size = size, .rounds = 4};
}

std::string ErrorWith(const std::string& algorithm, const std::string& edges, int32_t size,
                      AlgorithmOptions options = {}) {
  options["graph"] = "given";
  options["graph.edges"] = edges;
  return StatusOn({algorithm, options, size}).ToString();
}

TEST(GivenGraphTest, EveryAlgorithmOverGraphsTakesOne) {
  std::vector<std::string> names;
  for (const OverGraph& one : AllOverGraphs()) names.push_back(one.name);
  EXPECT_THAT(names,
              testing::IsSupersetOf({"choco_sgd", "exact_diffusion", "gradient_tracking", "noloco",
                                     "push_sum", "quasi_global_momentum", "slowmo"}));
}

TEST(GivenGraphTest, DoesBitByBitWhatTheSameGraphDoesByItsName) {
  for (const OverGraph& one : AllOverGraphs()) {
    for (const char* name : {"ring", "star", "fully_connected"}) {
      for (const int32_t size : {1, 3, 4}) {
        const Graph graph = (*MakeGraphs(name, WorldSize(size), {}))->At(0);
        EXPECT_EQ(ResultsOf(Case(one, GivenGraph(graph, one.option), size)),
                  ResultsOf(Case(one, {{one.option, name}}, size)))
            << one.name << " over " << name << " of " << size;
      }
    }
  }
}

TEST(GivenGraphTest, ItsWeightsAreWhatCounts) {
  const OverGraph one = {"exact_diffusion"};
  const auto lazy = ResultsOf(
      Case(one, {{"graph", "given"}, {"graph.edges", "0>0:0.9 1>1:0.9 0>1:0.1 1>0:0.1"}}, 2));
  const auto even = ResultsOf(
      Case(one, {{"graph", "given"}, {"graph.edges", "0>0:0.5 1>1:0.5 0>1:0.5 1>0:0.5"}}, 2));
  EXPECT_NE(lazy, even);
  EXPECT_EQ(even, ResultsOf(Case(one, {{"graph", "ring"}}, 2)));
}

TEST(GivenGraphTest, AnotherNumberOfRanksIsAnErrorThatNamesBoth) {
  for (const OverGraph& one : AllOverGraphs()) {
    const Graph ring = (*MakeGraphs("ring", WorldSize(4), {}))->At(0);
    EXPECT_THAT(StatusOn(Case(one, GivenGraph(ring, one.option), 3)).ToString(),
                HasSubstr("option " + one.option +
                          ": graph given of 3 ranks: it was given by hand for 4 ranks, and the "
                          "group has 3"))
        << one.name;
  }
}

TEST(GivenGraphTest, RefusesWhatDoesNotKeepTheMeanAndNamesTheRank) {
  const std::string lopsided = "0>0:0.5 1>0:0.5 0>1:0.25 1>1:0.75";
  EXPECT_THAT(ErrorWith("gradient_tracking", lopsided, 2),
              HasSubstr("option graph is 'given', which on 2 ranks does not keep the mean over all "
                        "ranks in step 0: what rank 0 gives adds up to 0.75"));
  EXPECT_THAT(ErrorWith("noloco", "0>0:0.75 1>0:0.5 0>1:0.25 1>1:0.5", 2),
              HasSubstr("what rank 0 takes adds up to 1.25"));
  EXPECT_EQ(ErrorWith("push_sum", lopsided, 2), "OK");
}

TEST(GivenGraphTest, RefusesWhatIsNotSymmetricAndNamesTheEdge) {
  const std::string circle = "0>0:0.5 1>1:0.5 2>2:0.5 0>1:0.5 1>2:0.5 2>0:0.5";
  for (const char* name : {"exact_diffusion", "choco_sgd"}) {
    EXPECT_THAT(ErrorWith(name, circle, 3),
                HasSubstr("is not symmetric with rows that add up to 1: the edge from rank 0 to "
                          "rank 1 has the weight 0.5, and the one back 0"))
        << name;
  }
  EXPECT_EQ(ErrorWith("quasi_global_momentum", circle, 3), "OK");
  EXPECT_THAT(ErrorWith("exact_diffusion", "0>0:0.5 1>1:0.5 0>1:0.25 1>0:0.25", 2),
              HasSubstr("what rank 0 gives adds up to 0.75"));
}

TEST(GivenGraphTest, RefusesRanksThatNeverAgree) {
  const std::string apart = "0>0:1 1>1:0.5 1>2:0.5 2>1:0.5 2>2:0.5";
  for (const char* name : {"exact_diffusion", "gradient_tracking", "push_sum"}) {
    EXPECT_THAT(ErrorWith(name, apart, 3),
                HasSubstr("which on 3 ranks has no way from rank 0 to rank 1, so that they never "
                          "agree"))
        << name;
    // The global rounds join them.
    EXPECT_EQ(ErrorWith(name, apart, 3, {{"global_interval", "4"}}), "OK") << name;
  }
  EXPECT_THAT(ErrorWith("push_sum", "0>1 2>2", 3), HasSubstr("no way from rank 1 to rank 0"));
  const std::string turns = "0>1:1 1>0:1";
  for (const char* name : {"quasi_global_momentum", "choco_sgd"}) {
    EXPECT_THAT(ErrorWith(name, turns, 2), HasSubstr("take turns for ever")) << name;
    EXPECT_EQ(ErrorWith(name, turns, 2, {{"global_interval", "4"}}), "OK") << name;
  }
  EXPECT_EQ(ErrorWith("choco_sgd", turns, 2, {{"consensus_rate", "0.5"}}), "OK");
  EXPECT_EQ(ErrorWith("exact_diffusion", turns, 2), "OK");  // (I + W) / 2 stays with each rank
  EXPECT_EQ(
      ErrorWith("quasi_global_momentum", "0>1:0.5 1>0:0.5 1>2:0.5 2>1:0.5 0>2:0.5 2>0:0.5", 3),
      "OK");  // ways of two steps and of three
}

TEST(GivenGraphTest, WhereEdgesCountAloneWeightsMakeNoDifference) {
  EXPECT_EQ(ErrorWith("push_sum", "0>1:0 1>0:-3", 2), "OK");
  EXPECT_THAT(ErrorWith("gradient_tracking", "0>0:1 1>1:1 0>1:0 1>0:0", 2),
              HasSubstr("has no way from rank 0 to rank 1"));
}

TEST(GivenGraphTest, RefusesWeightsBelowZero) {
  EXPECT_THAT(ErrorWith("exact_diffusion", "0>0:-1 1>1:-1 0>1:2 1>0:2", 2),
              HasSubstr("has the own weight -1 at rank 0; give weights of at least 0"));
  EXPECT_THAT(ErrorWith("gradient_tracking", "0>0:1.5 1>1:1.5 0>1:-0.5 1>0:-0.5", 2),
              HasSubstr("has the weight -0.5 from rank 0 to rank 1"));
}

TEST(GivenGraphTest, RefusesTextThatIsNoGraph) {
  EXPECT_THAT(ErrorWith("push_sum", "0-1", 2),
              HasSubstr("option graph: graph given of 2 ranks: option edges: '0-1' is no edge"));
  EXPECT_THAT(MakeAlgorithm("slowmo", {{"base.edges", "0>1 1>0"}}).status().ToString(),
              HasSubstr("option base.edges is given, but option base is 'none'"));
}

}  // namespace
}  // namespace pelton
