#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives/interpreter.h"
#include "comm/collectives/neighbor_communicator.h"
#include "comm/graph/graph_sequence.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// All ranks of a graph, in float64. Owns: their tables, programs and memory.
struct World {
  World(const Graph& graph, OperationKind kind, uint64_t count, bool sends_weights) {
    const size_t n = static_cast<size_t>(graph.size().value());
    for (size_t r = 0; r < n; ++r) {
      const Rank rank(static_cast<int32_t>(r));
      Neighborhood neighborhood = graph.Of(rank);
      if (sends_weights) {
        for (Neighbor& source : neighborhood.sources) source.weight = 1;
      }
      auto table = WeightTable::Create(std::move(neighborhood), {.sends_weights = sends_weights});
      EXPECT_TRUE(table.ok()) << table.status();
      tables.push_back(*std::move(table));
      programs.push_back(NeighborProgram({rank, graph.size(), kind, count}, *tables.back()));
      factors.push_back(FactorsOf(*tables.back()));
      sources.emplace_back();
      for (uint64_t i = 0; i < count; ++i) {
        sources.back().push_back(static_cast<double>((r + 2) * (i + 3)));
      }
      const bool gathers = kind == OperationKind::kNeighborAllGather;
      targets.emplace_back(gathers ? tables.back()->TotalCount(count) : count, -1.0);
    }
  }

  std::string Run() {
    std::vector<InterpretedRank> ranks;
    for (size_t r = 0; r < programs.size(); ++r) {
      ranks.push_back({&programs[r], reinterpret_cast<std::byte*>(sources[r].data()),
                       sources[r].size(), reinterpret_cast<std::byte*>(targets[r].data()),
                       targets[r].size(), factors[r].data(), factors[r].size()});
    }
    return Interpret(ranks, DType::kFloat64, ReduceOp::kSum);
  }

  std::vector<std::shared_ptr<const WeightTable>> tables;
  std::vector<Program> programs;
  std::vector<std::vector<double>> factors;
  std::vector<std::vector<double>> sources;
  std::vector<std::vector<double>> targets;
};

Graph GraphNamed(const std::string& name, int32_t size) {
  auto graphs = MakeGraphs(name, WorldSize(size), {});
  EXPECT_TRUE(graphs.ok()) << graphs.status();
  return (*graphs)->At(0);
}

// Row by row: self, then sources ascending.
TEST(NeighborProgramTest, CombinesByTheWeightsWhoeverGivesThem) {
  for (const char* const name : {"ring", "exponential", "star", "fully_connected"}) {
    for (int32_t size = 1; size <= 6; ++size) {
      for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{9}}) {
        for (const bool sends_weights : {false, true}) {
          const Graph graph = GraphNamed(name, size);
          World world(graph, OperationKind::kNeighborAllReduce, count, sends_weights);
          ASSERT_EQ(world.Run(), "") << name << " of " << size;
          for (size_t r = 0; r < world.targets.size(); ++r) {
            const Neighborhood mine = graph.Of(Rank(static_cast<int32_t>(r)));
            for (uint64_t i = 0; i < count; ++i) {
              double expected = mine.own * world.sources[r][i];
              for (const Neighbor& source : mine.sources) {
                const auto other = static_cast<size_t>(source.rank.value());
                expected += source.weight * world.sources[other][i];
              }
              EXPECT_EQ(world.targets[r][i], expected) << name << " of " << size << ", rank " << r;
            }
          }
        }
      }
    }
  }
}

TEST(NeighborProgramTest, GathersInTheOrderOfTheSources) {
  const Graph graph = GraphNamed("exponential", 5);
  World world(graph, OperationKind::kNeighborAllGather, 3, false);
  ASSERT_EQ(world.Run(), "");
  for (size_t r = 0; r < world.targets.size(); ++r) {
    std::vector<double> expected;
    for (const Neighbor& source : graph.Of(Rank(static_cast<int32_t>(r))).sources) {
      const std::vector<double>& theirs = world.sources[static_cast<size_t>(source.rank.value())];
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    EXPECT_EQ(world.targets[r], expected);
  }
}

TEST(NeighborProgramTest, SendsTheTensorOnceToEachDestination) {
  const Graph graph = GraphNamed("exponential", 8);
  World plain(graph, OperationKind::kNeighborAllReduce, 100, false);
  EXPECT_EQ(SentCount(plain.programs[0]), 3u * 100);
  World weighted(graph, OperationKind::kNeighborAllReduce, 100, true);
  EXPECT_EQ(SentCount(weighted.programs[0]), 3u * 101);
}

}  // namespace
}  // namespace pelton
