#include <memory>
#include <string>
#include <vector>

#include "algorithms/algorithm.h"
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
  EXPECT_THAT(Make({{"averag", "true"}}).status().ToString(),
              HasSubstr("option 'averag' is unknown; there are: average, hierarchical"));
}

TEST(GradientAllReduceTest, TakesWhatCanBeReduced) {
  const std::unique_ptr<Algorithm> algorithm = *Make({});
  EXPECT_TRUE(algorithm->Takes({"t", DType::kBFloat16, 1, {}}));
  EXPECT_FALSE(algorithm->Takes({"t", DType::kComplex64, 1, {}}));
}

TEST(GradientAllReduceTest, RefusesABucketItCannotReduce) {
  SimFabric fabric(WorldSize(1));
  const auto communicators = *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(1)));
  BucketLayout layout;
  layout.dtype = DType::kBool;
  EXPECT_THAT(MakePipeline(**Make({}), layout, Tiers::Of(*communicators[0])).status().ToString(),
              HasSubstr("cannot work on bool"));
}

}  // namespace
}  // namespace pelton
