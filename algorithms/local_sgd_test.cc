#include <string>
#include <utility>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/test_ranks.h"
#include "algorithms/test_world.h"
#include "core/actor/sim_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// LocalSGD and asynchronous model average: the same allreduce, taken in two ways.
namespace pelton {
namespace {

using ::testing::HasSubstr;

const std::vector<TensorSpec>& Tensors() {
  static const auto* const tensors =
      new std::vector<TensorSpec>{{"a", DType::kFloat32, 150, {}}, {"b", DType::kFloat32, 7, {}}};
  return *tensors;
}

TestRanksOptions OptionsOf(const std::string& algorithm, int32_t size, uint64_t disturbing_seed) {
  TestRanksOptions world;
  world.algorithm = algorithm;
  world.host_sizes.assign(static_cast<size_t>(size), 1);
  world.tensors = Tensors();
  world.bucket_size_bytes = 600;
  world.is_disturbed = disturbing_seed != 0;
  world.seed = disturbing_seed;
  return world;
}

std::vector<Values> Inputs(int32_t size, uint64_t round) {
  std::vector<Values> inputs;
  for (int32_t rank = 0; rank < size; ++rank) {
    inputs.push_back(TestWorld::Ramp(Tensors(), rank, round));
  }
  return inputs;
}

Values MeanOf(const std::vector<Values>& inputs) {
  Values mean = inputs[0];
  for (size_t slot = 0; slot < mean.size(); ++slot) {
    for (size_t i = 0; i < mean[slot].size(); ++i) {
      for (size_t rank = 1; rank < inputs.size(); ++rank) mean[slot][i] += inputs[rank][slot][i];
      mean[slot][i] /= static_cast<float>(inputs.size());
    }
  }
  return mean;
}

Values Minus(Values a, const Values& b) {
  for (size_t slot = 0; slot < a.size(); ++slot) {
    for (size_t i = 0; i < a[slot].size(); ++i) a[slot][i] -= b[slot][i];
  }
  return a;
}

void ExpectMeans(int32_t size, uint64_t disturbing_seed) {
  TestWorld world(OptionsOf("local_sgd", size, disturbing_seed));
  for (uint64_t round = 0; round < 3; ++round) {
    const std::vector<Values> inputs = Inputs(size, round + disturbing_seed);
    for (const Values& result : world.Round(inputs)) ASSERT_EQ(result, MeanOf(inputs));
  }
  EXPECT_EQ(world.SentBytes(), 3 * 2 * (static_cast<uint64_t>(size) - 1) * world.BucketBytes());
}

void ExpectDifferences(int32_t size, uint64_t disturbing_seed) {
  TestWorld world(OptionsOf("async_model_average", size, disturbing_seed));
  for (uint64_t round = 0; round < 3; ++round) {
    const std::vector<Values> inputs = Inputs(size, round + disturbing_seed);
    const std::vector<Values> results = world.Round(inputs);
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      ASSERT_EQ(results[rank], Minus(MeanOf(inputs), inputs[rank])) << "rank " << rank;
    }
  }
}

TEST(LocalSgdTest, TakesTheMeanOfAllRanks) {
  for (int32_t size : {1, 2, 3, 4, 8}) ExpectMeans(size, 0);
}

TEST(LocalSgdTest, HoldsUnderDelaysAndReorderings) {
  ForEachSeed(1000, [](uint64_t seed) { ExpectMeans(static_cast<int32_t>(1 + seed % 4), seed); });
}

TEST(LocalSgdTest, ItsFirstRoundEndsItsFirstInterval) {
  const Schedule schedule = (*MakeAlgorithm("local_sgd", {{"interval", "5"}}))->schedule();
  EXPECT_EQ(schedule.trigger, TriggerKind::kAfterStep);
  EXPECT_EQ(schedule.first_step, 5);
  EXPECT_EQ(schedule.interval, 5);
}

TEST(LocalSgdTest, RefusesValuesThatDoNotFit) {
  EXPECT_THAT(MakeAlgorithm("local_sgd", {{"interval", "0"}}).status().ToString(),
              HasSubstr("option interval is '0', not a whole number of at least 1"));
}

TEST(AsyncModelAverageTest, YieldsWhatEachRankLacksOfTheMean) {
  for (int32_t size : {1, 2, 3, 4, 8}) ExpectDifferences(size, 0);
}

TEST(AsyncModelAverageTest, HoldsUnderDelaysAndReorderings) {
  ForEachSeed(1000,
              [](uint64_t seed) { ExpectDifferences(static_cast<int32_t>(1 + seed % 4), seed); });
}

TEST(AsyncModelAverageTest, AddsItsResultsAfterAPause) {
  const Schedule schedule =
      (*MakeAlgorithm("async_model_average", {{"sync_interval_ms", "20"}}))->schedule();
  EXPECT_EQ(schedule.trigger, TriggerKind::kTimer);
  EXPECT_EQ(schedule.pause, absl::Milliseconds(20));
  EXPECT_EQ(schedule.commit.kept, 1);
  EXPECT_EQ(schedule.commit.taken, 1);
}

TEST(AsyncModelAverageTest, RefusesValuesThatDoNotFit) {
  EXPECT_THAT(
      MakeAlgorithm("async_model_average", {{"sync_interval_ms", "-1"}}).status().ToString(),
      HasSubstr("option sync_interval_ms is '-1'"));
}

}  // namespace
}  // namespace pelton
