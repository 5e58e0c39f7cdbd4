#include <vector>

#include "comm/reduction/linear_combination.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

std::vector<float> MeanOf(const std::vector<std::vector<float>>& tensors,
                          const std::vector<double>& factors) {
  std::vector<const std::byte*> pointers;
  for (const std::vector<float>& tensor : tensors) {
    pointers.push_back(reinterpret_cast<const std::byte*>(tensor.data()));
  }
  std::vector<float> target(tensors[0].size());
  std::vector<Term> terms;
  WeightedMean(pointers, factors, {reinterpret_cast<std::byte*>(target.data()), DType::kFloat32},
               target.size(), terms);
  return target;
}

// 49 * (1 / 49) is not 1 in float32, and 49 / 49 is.
TEST(WeightedMeanTest, EqualSharesAreASumThatIsDivided) {
  const std::vector<std::vector<float>> tensors(49, {1.0F});
  EXPECT_EQ(MeanOf(tensors, std::vector<double>(49, 1.0 / 49)), std::vector<float>{1.0F});
}

TEST(WeightedMeanTest, SharesThatAreEqualButForRoundingAreEqual) {
  EXPECT_EQ(MeanOf({{3}, {4}, {5}}, {1 - 2.0 / 3, 1.0 / 3, 1.0 / 3}), std::vector<float>{4});
}

TEST(WeightedMeanTest, OtherFactorsMultiplyTheirTensors) {
  EXPECT_EQ(MeanOf({{1, 2}, {10, 20}}, {0.5, 0.25}), (std::vector<float>{3, 6}));
  EXPECT_EQ(MeanOf({{1, 2}}, {3}), (std::vector<float>{3, 6}));
}

}  // namespace
}  // namespace pelton
