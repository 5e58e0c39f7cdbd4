#include <memory>
#include <string>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/test_ranks.h"
#include "comm/transport/sim/sim_fabric.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Algorithm>> Make(const AlgorithmOptions& options) {
  return MakeAlgorithm("gradient_allreduce", options);
}

TEST(GradientAllReduceTest, AveragesUnlessToldOtherwise) {
  EXPECT_EQ((*Make({}))->EqualsReduction(DType::kFloat32), ReduceOp::kAvg);
  EXPECT_EQ((*Make({{"average", "true"}}))->EqualsReduction(DType::kFloat16), ReduceOp::kAvg);
  EXPECT_EQ((*Make({{"average", "false"}}))->EqualsReduction(DType::kFloat32), ReduceOp::kSum);
  EXPECT_EQ((*Make({}))->EqualsReduction(DType::kInt64), ReduceOp::kSum);
}

TEST(GradientAllReduceTest, AcceptsHierarchicalAndRefusesTheRest) {
  EXPECT_TRUE(Make({{"hierarchical", "true"}}).ok());
  EXPECT_THAT(Make({{"hierarchical", "perhaps"}}).status().ToString(),
              HasSubstr("option hierarchical is 'perhaps'"));
  EXPECT_THAT(
      Make({{"averag", "true"}}).status().ToString(),
      HasSubstr("option 'averag' is unknown; there are: average, hierarchical, scatter_gather"));
}

TEST(GradientAllReduceTest, TakesWhatCanBeReduced) {
  const std::unique_ptr<Algorithm> algorithm = *Make({});
  EXPECT_TRUE(algorithm->Takes({"t", DType::kBFloat16, 1, {}}));
  EXPECT_TRUE(algorithm->Takes({"t", DType::kComplex64, 1, {}}));
}

TEST(GradientAllReduceTest, RefusesABucketItCannotReduce) {
  SimFabric fabric(WorldSize(1));
  const auto communicators = *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(1)));
  BucketLayout layout;
  layout.dtype = DType::kBool;
  EXPECT_THAT(MakePipeline(**Make({}), layout, Tiers::Of(*communicators[0])).status().ToString(),
              HasSubstr("cannot work on bool"));
}

// By rank, what each holds for each tensor; and the bytes sent.
struct Outcome {
  std::vector<std::vector<std::byte>> results;
  uint64_t sent_bytes;
};

Outcome RunOneRound(int32_t world_size, const AlgorithmOptions& options) {
  TestRanksOptions ranks_options;
  ranks_options.algorithm = "gradient_allreduce";
  ranks_options.options = options;
  ranks_options.host_sizes = {world_size};
  ranks_options.tensors = {
      {"a", DType::kFloat32, 1001, {}}, {"b", DType::kFloat32, 3, {}}, {"c", DType::kInt64, 5, {}}};
  TestRanks ranks(ranks_options);
  const absl::Status status = ranks.RunRound([](int32_t rank, SlotId slot, std::byte* data) {
    if (slot.value() == 2) {
      auto* const integers = reinterpret_cast<int64_t*>(data);
      for (int i = 0; i < 5; ++i) integers[i] = i * 7 - rank;
      return true;
    }
    auto* const floats = reinterpret_cast<float*>(data);
    const int count = slot.value() == 0 ? 1001 : 3;
    for (int i = 0; i < count; ++i) floats[i] = 1.0f / static_cast<float>(i + rank + 1);
    return true;
  });
  EXPECT_TRUE(status.ok()) << status;
  Outcome outcome{{}, ranks.SentBytes()};
  for (int32_t rank = 0; rank < world_size; ++rank) {
    for (int32_t slot : {0, 1, 2}) outcome.results.push_back(ranks.ResultOf(rank, SlotId(slot)));
  }
  return outcome;
}

TEST(GradientAllReduceTest, ScatterGatherGivesTheSameBitsForTheSameBytes) {
  for (int32_t world_size : {1, 2, 3, 4, 8}) {
    for (const char* average : {"true", "false"}) {
      const Outcome plain = RunOneRound(world_size, {{"average", average}});
      const Outcome halves =
          RunOneRound(world_size, {{"average", average}, {"scatter_gather", "true"}});
      EXPECT_EQ(halves.results, plain.results) << world_size << " ranks";
      EXPECT_EQ(halves.sent_bytes, plain.sent_bytes) << world_size << " ranks";
    }
  }
}

TEST(GradientAllReduceTest, SendsTheBytesOfItsFormula) {
  // Of the two buckets' slots, each on a cache line of 64 bytes, and a byte for each of the three.
  const uint64_t bytes = (4032 + 64) + 64 + 3;
  EXPECT_EQ(RunOneRound(4, {}).sent_bytes, 2 * 3 * bytes);
}

}  // namespace
}  // namespace pelton
