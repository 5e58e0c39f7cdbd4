// SlowMo against one process that does the same in plain loops.
#include <string>
#include <utility>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/test_graph_world.h"
#include "algorithms/test_ranks.h"
#include "algorithms/test_world.h"
#include "comm/graph/graph_sequence.h"
#include "core/actor/sim_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kInterval = 3;

const std::vector<TensorSpec>& Tensors() {
  static const auto* const tensors =
      new std::vector<TensorSpec>{{"a", DType::kFloat32, 150, {}}, {"b", DType::kFloat32, 140, {}}};
  return *tensors;
}

TestRanksOptions OptionsOf(int32_t size, AlgorithmOptions options) {
  TestRanksOptions world;
  world.algorithm = "slowmo";
  options.emplace("interval", std::to_string(kInterval));
  world.options = std::move(options);
  world.host_sizes.assign(static_cast<size_t>(size), 1);
  world.tensors = Tensors();
  world.bucket_size_bytes = 600;  // each is a bucket of its own
  return world;
}

Values Initial() { return TestWorld::Ramp(Tensors(), 5, 2); }

// A step of every rank's own optimizer.
std::vector<Values> Trained(std::vector<Values> values, uint64_t step) {
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const Values change = TestWorld::Ramp(Tensors(), static_cast<int32_t>(rank), step);
    for (size_t slot = 0; slot < change.size(); ++slot) {
      for (size_t i = 0; i < change[slot].size(); ++i) {
        values[rank][slot][i] -= 0.1F * change[slot][i];
      }
    }
  }
  return values;
}

// The slow step of one tensor, element by element.
struct Slow {
  std::vector<float> anchor;
  std::vector<float> momentum;

  void Step(const std::vector<Values>& ranks, size_t slot, float rate, float kept) {
    for (size_t i = 0; i < anchor.size(); ++i) {
      volatile float sum = anchor[i] - ranks[0][slot][i];
      for (size_t rank = 1; rank < ranks.size(); ++rank) {
        const float progress = anchor[i] - ranks[rank][slot][i];
        sum = sum + progress;
      }
      const float gradient = sum / static_cast<float>(ranks.size());
      volatile float decayed = kept * momentum[i];
      momentum[i] = decayed + gradient;
      volatile float moved = rate * momentum[i];
      anchor[i] = anchor[i] - moved;
    }
  }
};

// Of a tensor on all ranks, by one graph.
void TakeMeans(std::vector<Values>& ranks, size_t slot, const Graph& graph) {
  std::vector<std::vector<float>> means;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Neighborhood near = graph.Of(Rank(static_cast<int32_t>(rank)));
    std::vector<float>& mean = means.emplace_back(ranks[rank][slot].size());
    for (size_t i = 0; i < mean.size(); ++i) {
      volatile float sum = static_cast<float>(near.own) * ranks[rank][slot][i];
      for (const Neighbor& source : near.sources) {
        volatile float term = static_cast<float>(source.weight) *
                              ranks[static_cast<size_t>(source.rank.value())][slot][i];
        sum = sum + term;
      }
      mean[i] = sum;
    }
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank][slot] = means[rank];
}

std::vector<Slow> SlowSteps() {
  std::vector<Slow> slow;
  for (const std::vector<float>& tensor : Initial()) {
    slow.push_back({tensor, std::vector<float>(tensor.size())});
  }
  return slow;
}

void ExpectEqualsReference(int32_t size, uint64_t disturbing_seed) {
  TestRanksOptions options = OptionsOf(size, {{"slow_momentum", "0.5"}});
  options.is_disturbed = disturbing_seed != 0;
  options.seed = disturbing_seed;
  TestWorld world(options);
  world.Prime(Initial());
  std::vector<Slow> slow = SlowSteps();
  std::vector<Values> values(static_cast<size_t>(size), Initial());
  for (uint64_t round = 0; round < 4; ++round) {
    std::vector<Values> expected = Trained(values, round);
    values = world.Round(expected);
    for (size_t slot = 0; slot < Tensors().size(); ++slot) {
      slow[slot].Step(expected, slot, 1, 0.5F);
      for (Values& rank : expected) rank[slot] = slow[slot].anchor;
    }
    ASSERT_EQ(values, expected) << "round " << round;
  }
}

void ExpectEqualsReferenceOverAGraph(int32_t size, const std::string& base,
                                     uint64_t disturbing_seed) {
  TestRanksOptions options =
      OptionsOf(size, {{"base", base}, {"slow_momentum", "0.5"}, {"slow_learning_rate", "0.75"}});
  options.is_disturbed = disturbing_seed != 0;
  options.seed = disturbing_seed;
  TestWorld world(options);
  world.Prime(Initial());
  const auto graphs = *MakeGraphs(base, WorldSize(size), {});
  std::vector<Slow> slow = SlowSteps();
  std::vector<Values> values(static_cast<size_t>(size), Initial());
  for (uint64_t step = 0; step < 3 * kInterval; ++step) {
    std::vector<Values> expected = Trained(values, step);
    values = world.Round(expected);
    for (size_t slot = 0; slot < Tensors().size(); ++slot) {
      if ((step + 1) % kInterval != 0) {
        TakeMeans(expected, slot, graphs->At(step));
        continue;
      }
      slow[slot].Step(expected, slot, 0.75F, 0.5F);
      for (Values& rank : expected) rank[slot] = slow[slot].anchor;
    }
    ASSERT_EQ(values, expected) << "step " << step;
  }
}

TEST(SlowMoTest, TakesTheSlowStepBitByBit) {
  for (int32_t size : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE(size);
    ExpectEqualsReference(size, 0);
  }
}

TEST(SlowMoTest, TakesNeighboursMeansBetweenSlowStepsBitByBit) {
  for (const char* base : {"ring", "fully_connected", "one_peer_exponential"}) {
    for (int32_t size : {1, 2, 3, 4, 8}) {
      SCOPED_TRACE(testing::Message() << base << " of " << size);
      ExpectEqualsReferenceOverAGraph(size, base, 0);
    }
  }
}

TEST(SlowMoTest, HoldsUnderDelaysAndReorderings) {
  ForEachSeed(1000, [](uint64_t seed) {
    const auto size = static_cast<int32_t>(1 + seed % 4);
    ExpectEqualsReference(size, seed);
    ExpectEqualsReferenceOverAGraph(size, seed % 2 == 0 ? "ring" : "one_peer_exponential", seed);
  });
}

TEST(SlowMoTest, WithoutMomentumAndARateOfOneItIsTheMeanOfAllRanks) {
  TestWorld world(OptionsOf(4, {{"slow_momentum", "0"}}));
  world.Prime(Initial());
  const std::vector<Values> trained = Trained(std::vector<Values>(4, Initial()), 1);
  const std::vector<Values> values = world.Round(trained);
  for (size_t i = 0; i < values[0][0].size(); ++i) {
    float sum = 0;
    for (const Values& rank : trained) sum += rank[0][i];
    EXPECT_NEAR(values[3][0][i], sum / 4, 1e-4);
  }
}

TEST(SlowMoTest, SendsOnlyToNeighboursBetweenSlowSteps) {
  TestWorld world(OptionsOf(4, {{"base", "ring"}}));
  world.Prime(Initial());
  const std::vector<Values> values(4, Initial());
  uint64_t sent = world.SentBytes();
  for (uint64_t step = 1; step <= kInterval; ++step) {
    world.Round(values);
    // An allreduce sends 2 (n - 1) / n times the buckets from each rank.
    const uint64_t factor = step % kInterval == 0 ? 6 : 8;
    EXPECT_EQ(world.SentBytes() - sent, factor * world.BucketBytes()) << "step " << step;
    sent = world.SentBytes();
  }
}

TEST(SlowMoTest, HasRoundsOnlyAtSlowStepsUnlessNeighboursMeet) {
  const auto local = *MakeAlgorithm("slowmo", {{"interval", "12"}});
  EXPECT_EQ(local->schedule().first_step, 12);
  EXPECT_EQ(local->schedule().interval, 12);
  EXPECT_TRUE(local->RanksAgree());
  const auto gossip = *MakeAlgorithm("slowmo", {{"interval", "12"}, {"base", "ring"}});
  EXPECT_EQ(gossip->schedule().first_step, 1);
  EXPECT_EQ(gossip->schedule().interval, 1);
  EXPECT_FALSE(gossip->RanksAgree());
}

// Threads: as GraphBuilder. Owns: nothing.
class LopsidedGraph final : public GraphBuilder {
 public:
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    return std::make_unique<StaticGraph>(GraphOf({1, 0.5}, {{0, 1, 0.5}}));
  }
};

REGISTER_GRAPH(test_lopsided, "rank 1 listens to rank 0, and nobody to rank 1", LopsidedGraph);

TEST(SlowMoTest, RefusesGraphsThatDoNotKeepTheMean) {
  EXPECT_THAT(StatusOn({"slowmo", {{"base", "test_lopsided"}}, 2}).ToString(),
              HasSubstr("option base is 'test_lopsided', which on 2 ranks does not keep the mean"));
}

TEST(SlowMoTest, RefusesValuesThatDoNotFit) {
  EXPECT_THAT(MakeAlgorithm("slowmo", {{"base", "circle"}}).status().ToString(),
              HasSubstr("option base is 'circle', not one of none"));
  EXPECT_THAT(MakeAlgorithm("slowmo", {{"slow_momentum", "2"}}).status().ToString(),
              HasSubstr("option slow_momentum is '2'"));
}

}  // namespace
}  // namespace pelton
