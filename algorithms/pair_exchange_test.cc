// Asynchronous pairs, by a world whose rounds a test runs one at a time.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/test_alone_world.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Threads: one. Owns: as AloneWorld.
class World final : public AloneWorld {
 public:
  World(const std::string& graph, int32_t size, uint64_t seed, DType dtype = DType::kFloat64)
      : AloneWorld({"asynchronous_pairs", {{"graph", graph}}, size, seed, dtype}) {}
};

struct Case {
  const char* graph;
  int32_t size;
};
constexpr Case kCases[] = {{"ring", 2},
                           {"ring", 5},
                           {"star", 6},
                           {"one_peer_exponential", 8},
                           {"fully_connected", 4},
                           {"random_pairs", 6}};

// Each difference is halved once more than the weights that it is made of, so that forty of whole
// numbers below 1024 are exact.
TEST(PairExchangeTest, TheSumIsKeptExactlyInAnyOrderOfRounds) {
  for (const Case& test : kCases) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(absl::StrCat(test.graph, " of ", test.size, ", seed ", seed));
      World world(test.graph, test.size, seed);
      const std::vector<double> before = world.Sums();
      const double spread = world.Spread();
      world.RunAny(30);
      world.CollectAll();
      EXPECT_EQ(world.Sums(), before);
      EXPECT_LT(world.Spread(), spread);
    }
  }
}

TEST(PairExchangeTest, RanksComeToTheirMean) {
  for (const Case& test : kCases) {
    SCOPED_TRACE(absl::StrCat(test.graph, " of ", test.size));
    World world(test.graph, test.size, 7);
    const std::vector<double> before = world.Sums();
    world.RunAny(200 * test.size);
    world.CollectAll();
    EXPECT_LT(world.Spread(), 1e-6);
    const std::vector<double> after = world.Sums();
    for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-8);
  }
}

TEST(PairExchangeTest, AnOfferIsAnsweredOnceAndBothEndsTakeTheMean) {
  World world("ring", 2, 1);
  const std::vector<double> before = world.Sums();
  ASSERT_TRUE(world.Run(0).ok());  // offers
  const std::vector<double> offered = world.weights(0);
  ASSERT_TRUE(world.Run(1).ok());  // answers
  ASSERT_TRUE(world.Run(1).ok());  // and has nothing more to answer
  EXPECT_EQ(world.weights(0), offered);
  ASSERT_TRUE(world.Run(0).ok());  // collects, and answers what is its own mean already
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(world.weights(0)[i], before[i] / 2) << i;
    EXPECT_EQ(world.weights(1)[i], before[i] / 2) << i;
  }
}

// What it was offered is withdrawn, so that the others average on without it.
TEST(PairExchangeTest, ARankThatEndsItsRoundsHoldsUpNobody) {
  World world("fully_connected", 5, 3);
  const std::vector<double> before = world.Sums();
  world.RunAny(15);
  for (int round = 0; round < 600; ++round) {
    ASSERT_TRUE(world.Run(static_cast<int32_t>(world.Uniform(4))).ok());
  }
  EXPECT_LT(world.Spread({0, 1, 2, 3}), 1e-6);
  world.CollectAll();
  const std::vector<double> after = world.Sums();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-8);
}

TEST(PairExchangeTest, AnOfferIsWithdrawnBeforeTheNextOne) {
  World world("fully_connected", 3, 1);
  const std::vector<double> offered = world.weights(0);
  const std::vector<double> first = world.weights(1);
  const std::vector<double> second = world.weights(2);
  ASSERT_TRUE(world.Run(0).ok());  // offers to rank 1
  ASSERT_TRUE(world.Run(0).ok());  // and to rank 2
  ASSERT_TRUE(world.Run(1).ok());
  EXPECT_EQ(world.weights(1), first);
  ASSERT_TRUE(world.Run(2).ok());
  for (size_t i = 0; i < second.size(); ++i) {
    EXPECT_EQ(world.weights(2)[i], (offered[i] + second[i]) / 2) << i;
  }
}

TEST(PairExchangeTest, AfterTheLastRoundsNothingIsLeftBetweenRanks) {
  World world("ring", 4, 5);
  world.RunAny(10);
  ASSERT_TRUE(world.Run(1).ok());  // whose offer lies at rank 0 or 2 now
  world.CollectAll();
  const std::vector<double> before = world.Sums();
  for (int32_t rank = 0; rank < world.size(); ++rank) {
    // Far from what was offered, so that an offer from before would show.
    for (double& weight : world.weights(rank)) weight += 1024;
  }
  // Neither is the other's neighbour.
  for (const int32_t rank : {0, 2}) {
    const std::vector<double> trained = world.weights(rank);
    ASSERT_TRUE(world.Run(rank).ok());
    EXPECT_EQ(world.weights(rank), trained) << rank;
  }
  world.RunAny(10);
  world.CollectAll();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(world.Sums()[i], before[i] + 4 * 1024.0);
}

TEST(PairExchangeTest, ARankAloneKeepsItsWeights) {
  World world("ring", 1, 1);
  const std::vector<double> before = world.weights(0);
  world.RunAny(3);
  world.CollectAll();
  EXPECT_EQ(world.weights(0), before);
}

TEST(PairExchangeTest, WeightsOfFewerBitsComeToTheirMeanToo) {
  World world("ring", 4, 9, DType::kFloat32);
  const std::vector<double> before = world.Sums();
  world.RunAny(400);
  world.CollectAll();
  EXPECT_LT(world.Spread(), 1e-2);
  const std::vector<double> after = world.Sums();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-1);
}

}  // namespace
}  // namespace pelton
