// Every registered graph: what its weights add up to, and what several rounds over it come to.
#include <cmath>
#include <string>
#include <vector>

#include "comm/graph/graph.h"
#include "comm/graph/graph_sequence.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Matrix = std::vector<std::vector<double>>;  // [source][destination]

std::unique_ptr<GraphSequence> Make(const std::string& name, int32_t size,
                                    const Options& options = {}) {
  return *MakeGraphs(name, WorldSize(size), options);
}

Matrix MatrixOf(const Graph& graph) {
  const auto n = static_cast<size_t>(graph.size().value());
  Matrix matrix(n, std::vector<double>(n));
  for (size_t rank = 0; rank < n; ++rank) matrix[rank][rank] = graph.own()[rank];
  for (const Graph::Edge& edge : graph.edges()) {
    matrix[static_cast<size_t>(edge.source)][static_cast<size_t>(edge.destination)] = edge.weight;
  }
  return matrix;
}

Matrix Times(const Matrix& a, const Matrix& b) {
  Matrix product(a.size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < a.size(); ++k) {
      for (size_t j = 0; j < a.size(); ++j) product[i][j] += a[i][k] * b[k][j];
    }
  }
  return product;
}

Matrix AfterRounds(const GraphSequence& graphs, uint64_t rounds) {
  Matrix product = MatrixOf(graphs.At(0));
  for (uint64_t step = 1; step < rounds; ++step) {
    product = Times(product, MatrixOf(graphs.At(step)));
  }
  return product;
}

double FarthestFromMean(const Matrix& matrix) {
  double farthest = 0;
  for (const std::vector<double>& row : matrix) {
    for (const double weight : row) {
      farthest = std::max(farthest, std::abs(weight - 1.0 / static_cast<double>(matrix.size())));
    }
  }
  return farthest;
}

std::vector<int32_t> TargetsOf(const Graph& graph) {
  std::vector<int32_t> targets;
  for (const Graph::Edge& edge : graph.edges()) targets.push_back(edge.destination);
  return targets;
}

// Steps of which the graphs are looked at.
uint64_t StepsOf(const GraphSequence& graphs) {
  constexpr uint64_t kOfOneThatNeverRepeats = 40;
  return graphs.period() == 0 ? kOfOneThatNeverRepeats : graphs.period();
}

// By name. Machines have three ranks each, but for exp2_machines, which mixes between machines
// alone.
class EveryGraphTest : public ::testing::TestWithParam<std::string> {
 protected:
  static bool IsOverMachines() { return GetParam().find("inner_outer") != std::string::npos; }
  static std::vector<int32_t> Sizes() {
    if (IsOverMachines()) return {6, 9, 12, 21};
    if (GetParam() == "exp2_machines") return {2, 3, 4, 6, 8, 17};
    return {1, 2, 3, 4, 5, 6, 8, 12, 16, 17};
  }
  static std::unique_ptr<GraphSequence> Made(int32_t size) {
    if (GetParam() == kGivenGraph) {
      return Make(GetParam(), size, {{"edges", WriteGraph(Make("ring", size)->At(0))}});
    }
    return Make(GetParam(), size, IsOverMachines() ? Options{{"ranks_each", "3"}} : Options{});
  }
};

TEST_P(EveryGraphTest, TakesMeansAndKeepsTheMean) {
  for (const int32_t size : Sizes()) {
    const auto graphs = Made(size);
    ASSERT_EQ(graphs->size(), WorldSize(size));
    for (uint64_t step = 0; step < StepsOf(*graphs); ++step) {
      const Graph graph = graphs->At(step);
      EXPECT_TRUE(graph.TakesMeans()) << size << " ranks, step " << step;
      EXPECT_TRUE(graph.KeepsMean()) << size << " ranks, step " << step;
    }
  }
}

TEST_P(EveryGraphTest, BringsAllRanksToTheMeanInTime) {
  for (const int32_t size : Sizes()) {
    const auto graphs = Made(size);
    Matrix product = AfterRounds(*graphs, StepsOf(*graphs));
    for (int doubling = 0; doubling < 12; ++doubling) product = Times(product, product);
    EXPECT_LT(FarthestFromMean(product), 1e-6) << size << " ranks";
  }
}

TEST_P(EveryGraphTest, ItsPeriodIsThatOfItsGraphs) {
  for (const int32_t size : Sizes()) {
    const auto graphs = Made(size);
    for (uint64_t step = 0; step < graphs->period(); ++step) {
      EXPECT_EQ(graphs->At(step), graphs->At(step + graphs->period()));
    }
    for (uint64_t shorter = 1; shorter < graphs->period(); ++shorter) {
      bool repeats = true;
      for (uint64_t step = 0; step < graphs->period(); ++step) {
        repeats = repeats && graphs->At(step) == graphs->At(step + shorter);
      }
      EXPECT_FALSE(repeats) << size << " ranks repeat after " << shorter;
    }
  }
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const GraphRegistry::Entry& entry : GraphRegistry::Get().List()) names.push_back(entry.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, EveryGraphTest, ::testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

TEST(BaseTest, IsExactAfterItsPeriodForAnyNumberOfRanks) {
  for (const char* peers : {"1", "2", "3", "5"}) {
    for (int32_t size = 1; size <= 40; ++size) {
      const auto graphs = Make("base", size, {{"peers", peers}});
      EXPECT_LT(FarthestFromMean(AfterRounds(*graphs, graphs->period())), 1e-12)
          << size << " ranks, " << peers << " peers";
      for (uint64_t step = 0; step < graphs->period(); ++step) {
        const Graph graph = graphs->At(step);
        EXPECT_TRUE(graph.IsSymmetric());
        for (int32_t rank = 0; rank < size; ++rank) {
          EXPECT_LE(graph.Of(Rank(rank)).sources.size(), std::stoul(peers));
        }
      }
    }
  }
}

TEST(BaseTest, TakesAsManyStepsAsItsSourceSays) {
  EXPECT_EQ(Make("base", 64)->period(), 6u);  // a hypercube
  EXPECT_EQ(Make("base", 5)->period(), 5u);   // 4 + 1: 2 steps, an exchange, 2 steps
  EXPECT_EQ(Make("base", 6)->period(), 4u);   // 2 groups of 2 + 1: 3 steps, then between them
  EXPECT_EQ(Make("base", 9, {{"peers", "2"}})->period(), 2u);
  EXPECT_EQ(Make("base", 7, {{"peers", "9"}})->period(), 1u);  // all at once
}

TEST(EquiTest, MixesAsFastForAnyNumberOfRanks) {
  for (const int32_t size : {16, 64, 128}) {
    const auto dynamic = Make("equi_dyn", size);
    EXPECT_EQ(dynamic->period(), 0u);
    EXPECT_EQ(dynamic->At(7).edges().size(), static_cast<size_t>(size));
    EXPECT_LT(FarthestFromMean(AfterRounds(*dynamic, 40)), 0.02) << size;
    const auto fixed = Make("equi_static", size, {{"symmetric", "true"}});
    EXPECT_TRUE(fixed->At(0).IsSymmetric());
    EXPECT_LT(FarthestFromMean(AfterRounds(*fixed, 20)), 0.01) << size;
  }
  EXPECT_NE(Make("equi_dyn", 16)->At(0), Make("equi_dyn", 16, {{"seed", "1"}})->At(0));
  EXPECT_EQ(Make("equi_static", 16, {{"distances", "3"}})->At(0).Of(Rank(5)).sources.size(), 3u);
}

TEST(ExponentialTest, HasAnEdgeForEachPower) {
  const Graph graph = Make("exponential", 6)->At(0);
  EXPECT_EQ(graph.own()[0], 0.25);
  EXPECT_THAT(
      graph.Of(Rank(4)).destinations,
      ElementsAre(Neighbor{Rank(0), 0.25}, Neighbor{Rank(2), 0.25}, Neighbor{Rank(5), 0.25}));
  // BlueFog's logarithm misses 243.
  EXPECT_EQ(Make("exponential", 300, {{"base", "3"}})->At(0).Of(Rank(0)).destinations.size(), 6u);
  // Of 12: 1, 4, 8 = 12 - 4 and 11 = 12 - 1.
  const Neighborhood both = Make("symmetric_exponential", 12)->At(0).Of(Rank(0));
  EXPECT_THAT(both.destinations, ElementsAre(Neighbor{Rank(1), 0.2}, Neighbor{Rank(4), 0.2},
                                             Neighbor{Rank(8), 0.2}, Neighbor{Rank(11), 0.2}));
  EXPECT_TRUE(Make("symmetric_exponential", 12)->At(0).IsSymmetric());
}

TEST(OnePeerExponentialTest, IsExactAfterItsPeriodForPowersOfTwo) {
  for (const int32_t size : {2, 4, 8, 64, 256}) {
    const auto graphs = Make("one_peer_exponential", size);
    EXPECT_EQ(graphs->period(), static_cast<uint64_t>(std::log2(size)));
    EXPECT_EQ(FarthestFromMean(AfterRounds(*graphs, graphs->period())), 0) << size;
  }
  EXPECT_GT(FarthestFromMean(AfterRounds(*Make("one_peer_exponential", 6), 3)), 0.01);
}

TEST(RingTest, GoesWhereItIsTold) {
  EXPECT_THAT(TargetsOf(Make("ring", 3, {{"sides", "left"}})->At(0)), ElementsAre(2, 0, 1));
  EXPECT_THAT(TargetsOf(Make("ring", 3, {{"sides", "right"}})->At(0)), ElementsAre(1, 2, 0));
  EXPECT_EQ(Make("ring", 5)->At(0).own()[2], 1.0 / 3);
  EXPECT_EQ(Make("ring", 2)->At(0).own()[1], 0.5);
}

TEST(MeshGridTest, HasMetropolisWeights) {
  // 0 1 2
  // 3 4 5: corners have 3 in their neighbourhood, the two between 4.
  const Graph graph = Make("mesh_grid", 6)->At(0);
  EXPECT_TRUE(graph.IsSymmetric());
  EXPECT_THAT(graph.Of(Rank(0)).destinations,
              ElementsAre(Neighbor{Rank(1), 0.25}, Neighbor{Rank(3), 1.0 / 3}));
  EXPECT_NEAR(graph.own()[0], 1 - 0.25 - 1.0 / 3, 1e-15);
  EXPECT_THAT(
      graph.Of(Rank(4)).sources,
      ElementsAre(Neighbor{Rank(1), 0.25}, Neighbor{Rank(3), 0.25}, Neighbor{Rank(5), 0.25}));
  EXPECT_EQ(Make("mesh_grid", 6, {{"shape", "1x6"}})->At(0).Of(Rank(3)).sources.size(), 2u);
}

TEST(StarTest, HasItsCenterWhereItIsTold) {
  const Graph graph = Make("star", 4, {{"center", "2"}})->At(0);
  EXPECT_THAT(graph.own(), ElementsAre(0.75, 0.75, 0.25, 0.75));
  EXPECT_EQ(graph.Of(Rank(2)).destinations.size(), 3u);
  EXPECT_THAT(graph.Of(Rank(0)).sources, ElementsAre(Neighbor{Rank(2), 0.25}));
}

TEST(OnePeerOfTest, TakesTurnsByDistanceUpward) {
  const OnePeerOf turns(Make("star", 3)->At(0));
  EXPECT_EQ(turns.period(), 2u);
  EXPECT_THAT(TargetsOf(turns.At(0)), ElementsAre(1, 0, 0));
  EXPECT_THAT(TargetsOf(turns.At(1)), ElementsAre(2, 0, 0));
  EXPECT_EQ(turns.At(0).own()[0], 1.0 / 3);  // it has two sources
  EXPECT_EQ(turns.At(0).own()[2], 1.0);      // and this one none
  EXPECT_TRUE(turns.At(0).TakesMeans());
  const OnePeerOf upward(Make("exponential", 8)->At(0));
  EXPECT_EQ(upward.At(1), Make("one_peer_exponential", 8)->At(1));
}

TEST(MachineGraphsTest, SendByTheRulesOfEachStep) {
  const Options three = {{"ranks_each", "3"}};
  // Machines 0 1 2 | 3 4 5 | 6 7 8.
  EXPECT_THAT(TargetsOf(Make("exp2_machines", 9, three)->At(1)),
              ElementsAre(6, 7, 8, 0, 1, 2, 3, 4, 5));
  EXPECT_THAT(TargetsOf(Make("inner_outer_ring", 9, three)->At(0)),
              ElementsAre(3, 2, 1, 6, 5, 4, 0, 8, 7));
  EXPECT_THAT(TargetsOf(Make("inner_outer_ring", 9, three)->At(1)),
              ElementsAre(2, 4, 0, 5, 7, 3, 8, 1, 6));
  // Machines of five: distances 1 and 2 inside, one further past the place that is outside.
  const auto expo = Make("inner_outer_expo2", 10, {{"ranks_each", "5"}});
  EXPECT_THAT(TargetsOf(expo->At(0)), ElementsAre(5, 2, 3, 4, 1, 0, 7, 8, 9, 6));
  EXPECT_THAT(TargetsOf(expo->At(1)), ElementsAre(3, 6, 4, 0, 2, 8, 1, 9, 5, 7));
}

TEST(GraphsTest, RefuseWhatDoesNotFit) {
  const auto error = [](const std::string& name, int32_t size, const Options& options) {
    return MakeGraphs(name, WorldSize(size), options).status().ToString();
  };
  EXPECT_THAT(error("rong", 4, {}),
              HasSubstr("'rong' is not registered; there are: base, equi_dyn"));
  EXPECT_THAT(error("ring", 4, {{"side", "left"}}), HasSubstr("option 'side' is unknown"));
  EXPECT_THAT(error("ring", 4, {{"sides", "up"}}), HasSubstr("not one of both, left, right"));
  EXPECT_THAT(error("star", 4, {{"center", "4"}}), HasSubstr("not a rank from 0 to 3"));
  EXPECT_THAT(error("mesh_grid", 6, {{"shape", "2x2"}}),
              HasSubstr("graph mesh_grid of 6 ranks: option shape is 2x2"));
  EXPECT_THAT(error("mesh_grid", 6, {{"shape", "2"}}), HasSubstr("rows x columns, as 2x3"));
  EXPECT_THAT(error("exponential", 4, {{"base", "1"}}), HasSubstr("of at least 2"));
  EXPECT_THAT(error("exp2_machines", 4, {{"ranks_each", "4"}}),
              HasSubstr("into 2 machines or more"));
  EXPECT_THAT(error("inner_outer_ring", 4, {{"ranks_each", "2"}}), HasSubstr("not at least 3"));
  EXPECT_THAT(error("ring", 0, {}), HasSubstr("size is 0"));
}

}  // namespace
}  // namespace pelton
