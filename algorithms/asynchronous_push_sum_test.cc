// Push-sum whose rounds no other rank shares, by a world whose rounds a test runs one at a time.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/test_alone_world.h"
#include "algorithms/test_graph_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::HasSubstr;

struct Case {
  const char* graph;
  int32_t size;
  Options options = {};  // of the graph
  int halves = 20;       // of rounds, three times
};

// Threads: one. Owns: as AloneWorld.
class World final : public AloneWorld {
 public:
  World(const Case& one, uint64_t seed, DType dtype = DType::kFloat64)
      : AloneWorld({"asynchronous_push_sum", OptionsOf(one), one.size, seed, dtype}) {}

  // Of all ranks and slots: of s by element, and of w by bucket.
  std::vector<double> NumeratorSums() { return InWindows("shares").elements; }
  std::vector<double> ShareSums() { return InWindows("shares").last; }
  std::vector<double> SharesOf(int32_t rank) { return TensorsOf(rank, "shares").last; }
  // The largest distance of a weight from these.
  double FarthestFrom(const std::vector<double>& values) {
    double farthest = 0;
    for (int32_t rank = 0; rank < size(); ++rank) {
      for (size_t i = 0; i < kElements; ++i) {
        farthest = std::max(farthest, std::abs(weights(rank)[i] - values[i]));
      }
    }
    return farthest;
  }
  std::vector<double> Means() {
    std::vector<double> means = Sums();
    for (double& mean : means) mean /= size();
    return means;
  }

 private:
  static Options OptionsOf(const Case& one) {
    Options options = {{"graph", one.graph}};
    for (const auto& [name, value] : one.options) options[absl::StrCat("graph.", name)] = value;
    return options;
  }
};

// Each has 1, 3 or no destinations, so that shares of whole numbers are exact while they have fewer
// than 52 bits. What is given takes one bit more or two.
const Case kExactCases[] = {{"ring", 2},
                            {"ring", 5, {{"sides", "right"}}},
                            {"star", 4, {}, 8},
                            {"one_peer_exponential", 8},
                            {"exponential", 8, {}, 8},
                            {"fully_connected", 4, {}, 8},
                            {"random_pairs", 6}};
const Case kCases[] = {{"ring", 2},
                       {"ring", 5},
                       {"ring", 6, {{"sides", "right"}}},
                       {"star", 6},
                       {"one_peer_exponential", 8},
                       {"exponential", 7},
                       {"mesh_grid", 6},
                       {"equi_dyn", 5},
                       {"random_pairs", 6},
                       {"given", 4, {{"edges", "0>1 1>2 2>3 3>0 0>2"}}}};

std::string NameOf(const Case& one) { return absl::StrCat(one.graph, " of ", one.size); }

TEST(AsynchronousPushSumTest, TheSumsAreKeptExactlyInAnyInterleaving) {
  for (const Case& one : kExactCases) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(absl::StrCat(NameOf(one), ", seed ", seed));
      World world(one, seed);
      const std::vector<double> before = world.Sums();
      const double spread = world.Spread();
      for (int32_t rank = 0; rank < one.size; ++rank) ASSERT_TRUE(world.Run(rank).ok());
      for (int part = 0; part < 3; ++part) {
        world.RunInterleaved(one.halves);
        EXPECT_EQ(world.NumeratorSums(), before);
        EXPECT_THAT(world.ShareSums(), Each(one.size));
      }
      world.CollectAll();
      EXPECT_EQ(world.NumeratorSums(), before);
      EXPECT_LT(world.Spread(), spread);
    }
  }
}

TEST(AsynchronousPushSumTest, RanksComeToTheMeanOfWhatTheyBeganWith) {
  for (const Case& one : kCases) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      SCOPED_TRACE(absl::StrCat(NameOf(one), ", seed ", seed));
      World world(one, seed);
      const std::vector<double> means = world.Means();
      world.RunInterleaved(300 * one.size);
      world.CollectAll();
      EXPECT_LT(world.FarthestFrom(means), 1e-6);
    }
  }
}

// Where shares differ: at the star's centre ever more of them lie than elsewhere. A mean of the
// weights would come out otherwise.
TEST(AsynchronousPushSumTest, WhatEachRankLearnsCountsAlike) {
  for (const Case& one : {Case{"star", 5}, Case{"ring", 5, {{"sides", "right"}}}}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(absl::StrCat(NameOf(one), ", seed ", seed));
      World world(one, seed);
      std::vector<double> expected = world.Means();
      for (int step = 0; step < 60; ++step) {
        const int32_t rank = world.AnyRank();
        // Also while its round is under way. Rank 4 learns most, and rank 0, the centre, nothing.
        for (double& weight : world.weights(rank)) weight += 16.0 * rank;
        for (double& mean : expected) mean += 16.0 * rank / one.size;
        const int32_t next = world.AnyRank();
        ASSERT_TRUE((world.is_under_way(next) ? world.Finish(next) : world.Begin(next)).ok());
      }
      world.RunInterleaved(300 * one.size);
      world.CollectAll();
      EXPECT_LT(world.FarthestFrom(expected), 1e-6);
    }
  }
}

TEST(AsynchronousPushSumTest, AShareOfTheWeightsCountsByItsW) {
  World world({"ring", 2}, 1);
  const std::vector<double> first = world.weights(0);
  const std::vector<double> second = world.weights(1);
  ASSERT_TRUE(world.Run(0).ok());  // gives a half
  EXPECT_EQ(world.weights(0), first);
  EXPECT_THAT(world.SharesOf(0), Each(0.5));
  ASSERT_TRUE(world.Run(1).ok());  // has 3/2 of shares and gives a half of them
  EXPECT_THAT(world.SharesOf(1), Each(0.75));
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_NEAR(world.weights(1)[i], (first[i] / 2 + second[i]) / 1.5, 1e-12) << i;
  }
  EXPECT_THAT(world.ShareSums(), Each(2));
  ASSERT_TRUE(world.Run(1).ok());  // rank 0 has not collected yet
  EXPECT_THAT(world.SharesOf(1), Each(0.75));
  ASSERT_TRUE(world.Run(0).ok());
  EXPECT_THAT(world.SharesOf(0), Each(0.625));
}

// Its weights move by what training changes in them divided by w. So w must not fall for ever.
TEST(AsynchronousPushSumTest, ARankThatIsGivenNothingKeepsAShareAndTrainsOn) {
  World world({"ring", 5, {{"sides", "right"}}}, 3);
  const std::vector<double> begun = world.weights(2);
  const std::vector<double> before = world.Sums();
  for (int round = 0; round < 300; ++round) {
    for (double& weight : world.weights(2)) weight += 1;
    ASSERT_TRUE(world.Run(2).ok());
    ASSERT_TRUE(world.Run(3).ok());  // and takes what it is given
  }
  EXPECT_THAT(world.SharesOf(2), Each(0.25));
  for (size_t i = 0; i < begun.size(); ++i) {
    EXPECT_NEAR(world.weights(2)[i], begun[i] + 1 + 2 + 4 * 298, 1e-6) << "each step by its w";
  }
  world.RunInterleaved(1500);
  world.CollectAll();
  for (int32_t rank = 0; rank < 5; ++rank) {
    for (size_t i = 0; i < begun.size(); ++i) {
      EXPECT_NEAR(world.weights(rank)[i], (before[i] + 300) / 5, 1e-6) << rank;
    }
  }
}

// It has its first share of each of the others, and they average on with what they have left.
TEST(AsynchronousPushSumTest, ARankThatStandsStillHoldsUpNobody) {
  for (const Case& one :
       {Case{"one_peer_exponential", 3}, Case{"one_peer_exponential", 8}, Case{"exponential", 8},
        Case{"star", 6}, Case{"ring", 5}, Case{"fully_connected", 4}}) {
    SCOPED_TRACE(NameOf(one));
    World world(one, 4);
    const std::vector<double> means = world.Means();
    std::vector<int32_t> others;
    for (int32_t rank = 0; rank + 1 < one.size; ++rank) others.push_back(rank);
    for (int round = 0; round < 150 * one.size; ++round) {
      ASSERT_TRUE(world.Run(others[world.Uniform(others.size())]).ok());
    }
    EXPECT_LT(world.Spread(others), 1e-5);
    world.RunInterleaved(300 * one.size);
    world.CollectAll();
    EXPECT_LT(world.FarthestFrom(means), 1e-6);
  }
}

// Rank 2 stands still, so that the others have less than 1 and in every second round too little to
// give. By the number of its rounds a rank would come to some of the graphs alone.
TEST(AsynchronousPushSumTest, EachGraphHasItsTurnHoweverOftenThereIsTooLittleToGive) {
  World world({"one_peer_exponential", 4}, 1);
  for (int turn = 0; turn < 300; ++turn) {
    for (const int32_t rank : {0, 1, 3}) ASSERT_TRUE(world.Run(rank).ok());
  }
  EXPECT_LT(world.Spread({0, 1, 3}), 1e-8);
}

TEST(AsynchronousPushSumTest, AfterAStopTheSumsGoOn) {
  World world({"ring", 4, {{"sides", "right"}}}, 5);
  const std::vector<double> means = world.Means();
  for (int phase = 0; phase < 3; ++phase) {
    world.RunInterleaved(20);
    world.CollectAll();
    double between = world.ShareSums()[0];
    for (int32_t rank = 0; rank < 4; ++rank) between -= world.SharesOf(rank)[0];
    EXPECT_EQ(between, 0) << "nothing is left between ranks";
  }
  world.RunInterleaved(1200);
  world.CollectAll();
  EXPECT_LT(world.FarthestFrom(means), 1e-6);
}

// Weights that were loaded, or a mean that was taken, are no step of training.
TEST(AsynchronousPushSumTest, WhatChangesTheWeightsWhileAllHaveStoppedIsTakenAsItIs) {
  World world({"star", 4}, 6);
  world.RunAny(41);
  world.CollectAll();
  for (int32_t rank = 0; rank < 4; ++rank) {
    for (double& weight : world.weights(rank)) weight = rank == 0 ? std::nan("") : 7;
    EXPECT_NE(world.SharesOf(rank)[0], 1) << "the test shows nothing";
  }
  for (double& weight : world.weights(0)) weight = 7;
  for (int32_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(world.Run(rank).ok());
    for (const double weight : world.weights(rank)) EXPECT_NEAR(weight, 7, 1e-12);
  }
  world.RunInterleaved(200);
  world.CollectAll();
  EXPECT_LT(world.FarthestFrom(std::vector<double>(AloneWorld::kElements, 7)), 1e-12);
  EXPECT_THAT(world.ShareSums(), Each(DoubleNear(4, 1e-12)));
}

TEST(AsynchronousPushSumTest, ARankAloneKeepsItsWeights) {
  World world({"one_peer_exponential", 1}, 1);
  for (double& weight : world.weights(0)) weight += 0.3;
  const std::vector<double> before = world.weights(0);
  world.RunAny(3);
  world.CollectAll();
  world.RunAny(3);
  EXPECT_EQ(world.weights(0), before);
}

// Shares are of float32. What a rank's weights are rounded by does not go into them, so that it
// does not add up: 16 bits stand 0.5 to 4 apart here.
TEST(AsynchronousPushSumTest, WeightsOfFewerBitsComeToTheMeanToo) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Case& one : {Case{"ring", 4, {{"sides", "right"}}}, Case{"star", 6}}) {
      SCOPED_TRACE(absl::StrCat(NameOf(one), ", ", SizeOf(dtype), " bytes"));
      World world(one, 9, dtype);
      // Rounded, as they are from the first round on.
      for (int32_t rank = 0; rank < one.size; ++rank) ASSERT_TRUE(world.Run(rank).ok());
      std::vector<double> means = world.NumeratorSums();
      for (double& mean : means) mean /= one.size;
      world.RunInterleaved(400 * one.size);
      world.CollectAll();
      const double apart = dtype == DType::kFloat32 ? 1e-2 : dtype == DType::kFloat16 ? 0.5 : 4;
      EXPECT_LT(world.FarthestFrom(means), apart);
      EXPECT_THAT(world.ShareSums(), Each(DoubleNear(one.size, 1e-4)));
      const std::vector<double> after = world.NumeratorSums();
      for (size_t i = 0; i < means.size(); ++i) {
        EXPECT_NEAR(after[i], means[i] * one.size, 0.05) << i;
      }
    }
  }
}

// Of the two or one that collect, each gets a third. Rounding each time in the same direction would
// show.
TEST(AsynchronousPushSumTest, PartsOfThreeDoNotLetTheSumsGrow) {
  World world({"ring", 3}, 2, DType::kFloat32);
  world.RunAny(10000);
  EXPECT_THAT(world.ShareSums(), Each(DoubleNear(3, 5e-5)));
}

TEST(AsynchronousPushSumTest, RefusesWhatDoesNotFit) {
  const auto error = [](const AlgorithmOptions& options) {
    return StatusOn({"asynchronous_push_sum", options, 3}).ToString();
  };
  EXPECT_THAT(error({{"graph", "given"}, {"graph.edges", "0>1 0>2 1>2"}}),
              HasSubstr("has no way from rank 1 to rank 0, so that they never agree"));
  EXPECT_THAT(error({{"graph", "circle"}}), HasSubstr("option graph is 'circle', not one of"));
  EXPECT_THAT(MakeAlgorithm("asynchronous_push_sum", {{"codec", "top_k"}}).status().ToString(),
              HasSubstr("has to add up to what they had"));
}

}  // namespace
}  // namespace pelton
