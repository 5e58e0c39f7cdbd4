#include "comm/reduction/cuda/mean_on_host.h"

#include <vector>

#include "core/memory/dtype.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

PeltonMean MeanOf(std::vector<float>& own, const std::vector<float>& theirs,
                  const std::vector<double>& factors) {
  return {own.data(),
          theirs.data(),
          own.size() * sizeof(float),
          static_cast<int32_t>(factors.size() - 1),
          static_cast<int32_t>(DType::kFloat32),
          factors.data(),
          nullptr,
          own.data(),
          own.size()};
}

TEST(MeanOnHostTest, CombinesTheRowsWithTheirFactors) {
  std::vector<float> own = {1, 2, 3, 4};
  const std::vector<float> theirs = {10, 20, 30, 40, 100, 200, 300, 400};
  const std::vector<double> factors = {0.5, 2, 3};
  RunOnHost(MeanOf(own, theirs, factors));
  EXPECT_EQ(own, (std::vector<float>{320.5, 641, 961.5, 1282}));
}

TEST(MeanOnHostTest, MultipliesByTheWeightsThatHaveCome) {
  std::vector<float> own = {1, 2, 3, 4};
  const std::vector<float> theirs = {10, 20, 30, 40};
  const std::vector<double> factors = {0, 2};
  const std::vector<double> arrived = {0.25};
  PeltonMean mean = MeanOf(own, theirs, factors);
  mean.arrived = arrived.data();
  RunOnHost(mean);
  EXPECT_EQ(own, (std::vector<float>{5, 10, 15, 20}));
}

TEST(MeanOnHostTest, IsValidForWhatTheKernelTakes) {
  std::vector<float> own(4);
  const std::vector<double> factors = {1, 1};
  PeltonMean mean = MeanOf(own, own, factors);
  EXPECT_TRUE(IsValid(mean));
  mean.stride_bytes = 4;
  EXPECT_FALSE(IsValid(mean));
  mean.stride_bytes = 16;
  mean.dtype = static_cast<int32_t>(DType::kInt32);
  EXPECT_FALSE(IsValid(mean));
  mean.dtype = kDTypeCount;
  EXPECT_FALSE(IsValid(mean));
}

}  // namespace
}  // namespace pelton
