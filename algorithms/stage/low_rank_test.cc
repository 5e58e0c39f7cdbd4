#include <cmath>
#include <vector>

#include "algorithms/stage/power_sgd_stage.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr uint64_t kCount = 101;  // no multiple of a vector's width

// `rank` vectors of pseudo-random numbers.
template <typename T>
std::vector<T> Numbers(uint64_t rank, uint64_t count = kCount) {
  std::vector<T> numbers(rank * count);
  NormalizeOrReplace<T>({numbers.data(), count, rank}, 7);
  return numbers;
}

TEST(LowRankTest, ProductsEqualThePlainOnes) {
  const std::vector<double> matrix = Numbers<double>(6);  // [6, kCount]
  std::vector<double> factors = Numbers<double>(3);
  std::vector<double> products(3 * 6);
  const Vectors<double> left{products.data(), 6, 3};
  for (uint64_t row = 0; row < 6; ++row) {
    MultiplyRow(&matrix[row * kCount], Vectors<double>{factors.data(), kCount, 3}, row, left);
  }
  std::vector<double> sums(3 * kCount);
  const Vectors<double> right{sums.data(), kCount, 3};
  AddWeightedRows(matrix.data(), 0, 5, left, right);  // four rows at once, then one
  AddWeightedRows(&matrix[5 * kCount], 5, 1, left, right);
  for (uint64_t k = 0; k < 3; ++k) {
    for (uint64_t row = 0; row < 6; ++row) {
      double product = 0;
      for (uint64_t j = 0; j < kCount; ++j) {
        product += matrix[row * kCount + j] * factors[k * kCount + j];
      }
      EXPECT_NEAR(left[k][row], product, 1e-14);
    }
    for (uint64_t j = 0; j < kCount; ++j) {
      double sum = 0;
      for (uint64_t row = 0; row < 6; ++row) sum += left[k][row] * matrix[row * kCount + j];
      EXPECT_NEAR(right[k][j], sum, 1e-14);
    }
  }
  std::vector<double> expanded(kCount);
  ExpandRow(left, 2, right, expanded.data());
  for (uint64_t j = 0; j < kCount; ++j) {
    const double sum =
        left[0][2] * right[0][j] + left[1][2] * right[1][j] + left[2][2] * right[2][j];
    EXPECT_NEAR(expanded[j], sum, 1e-14);
  }
}

TEST(LowRankTest, OrthogonalizesAtEveryMagnitude) {
  for (float scale : {1.0f, 1e-30f, 1e30f}) {
    std::vector<float> numbers = Numbers<float>(4);
    for (float& each : numbers) each *= scale;
    const Vectors<float> vectors{numbers.data(), kCount, 4};
    Orthogonalize(vectors);
    for (uint64_t i = 0; i < 4; ++i) {
      for (uint64_t j = 0; j < 4; ++j) {
        EXPECT_NEAR(WideDot(vectors[i], vectors[j], kCount), i == j ? 1 : 0, 1e-5);
      }
    }
  }
}

TEST(LowRankTest, AVectorThatDependsOnOthersBecomesZeros) {
  std::vector<float> numbers = Numbers<float>(3);
  const Vectors<float> vectors{numbers.data(), kCount, 3};
  for (uint64_t i = 0; i < kCount; ++i) vectors[1][i] = -3 * vectors[0][i];
  Orthogonalize(vectors);
  EXPECT_EQ(WideDot(vectors[1], vectors[1], kCount), 0);
  EXPECT_NEAR(WideDot(vectors[2], vectors[2], kCount), 1, 1e-5);
}

TEST(LowRankTest, AnOverflowStaysVisible) {
  for (float bad : {INFINITY, NAN}) {
    std::vector<float> numbers = Numbers<float>(2);
    numbers[5] = bad;
    Orthogonalize<float>({numbers.data(), kCount, 2});
    EXPECT_TRUE(std::isnan(numbers[5]));
  }
}

TEST(LowRankTest, ReplacesWhatIsNoDirection) {
  for (float bad : {0.0f, INFINITY, NAN}) {
    std::vector<float> numbers(2 * kCount, bad);
    for (uint64_t i = 0; i < kCount; ++i) numbers[i] = 2;
    const Vectors<float> vectors{numbers.data(), kCount, 2};
    NormalizeOrReplace(vectors, 1);
    EXPECT_NEAR(vectors[0][3], 1 / std::sqrt(static_cast<float>(kCount)), 1e-6);
    EXPECT_NEAR(WideDot(vectors[1], vectors[1], kCount), 1, 1e-5);
    EXPECT_LT(std::abs(WideDot(vectors[0], vectors[1], kCount)), 0.5);
  }
}

}  // namespace
}  // namespace pelton
