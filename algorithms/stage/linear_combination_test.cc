#include "algorithms/stage/linear_combination.h"

#include <cstring>
#include <vector>

#include "comm/reduction/half.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr uint64_t kCount = 9001;  // more than two blocks, and no multiple of one

template <typename T>
const std::byte* Bytes(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}
template <typename T>
std::byte* Bytes(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

std::vector<float> Ramp(float scale) {
  std::vector<float> values(kCount);
  for (uint64_t i = 0; i < kCount; ++i) values[i] = scale * static_cast<float>(i % 977) - 3.7F;
  return values;
}

TEST(LinearCombinationTest, AddsFromTheLeftInFloat32) {
  const std::vector<float> a = Ramp(0.1F);
  const std::vector<float> b = Ramp(-0.3F);
  const std::vector<float> c = Ramp(17.0F);
  std::vector<float> target(kCount);
  const Term terms[] = {{Bytes(a), 1}, {Bytes(b), 1.0 / 3}, {Bytes(c), -5.0 / 3}};
  LinearCombination(terms, {Bytes(target)}, kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    volatile float sum = static_cast<float>(1.0 / 3) * b[i];
    sum = a[i] + sum;
    volatile float last = static_cast<float>(-5.0 / 3) * c[i];
    ASSERT_EQ(target[i], sum + last) << i;
  }
}

TEST(LinearCombinationTest, ComputesInFloat64WhereATermIsOfIt) {
  const std::vector<double> a(kCount, 1e-12);
  const std::vector<float> b = Ramp(1);
  std::vector<double> target(kCount);
  const Term terms[] = {{Bytes(a), 2, DType::kFloat64}, {Bytes(b), 1.0 / 3}};
  LinearCombination(terms, {Bytes(target), DType::kFloat64}, kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(target[i], 2 * 1e-12 + 1.0 / 3 * static_cast<double>(b[i])) << i;
  }
}

TEST(LinearCombinationTest, RoundsSixteenBitsOnce) {
  std::vector<uint16_t> half(kCount);
  std::vector<uint16_t> brain(kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    half[i] = Float16FromFloat(static_cast<float>(i) / 64);
    brain[i] = BFloat16FromFloat(static_cast<float>(i));
  }
  std::vector<uint16_t> target(kCount);
  const Term terms[] = {{Bytes(half), 1, DType::kFloat16}, {Bytes(brain), 0.5, DType::kBFloat16}};
  LinearCombination(terms, {Bytes(target), DType::kFloat16}, kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    const float sum = FloatFromFloat16(half[i]) + 0.5F * FloatFromBFloat16(brain[i]);
    ASSERT_EQ(target[i], Float16FromFloat(sum)) << i;
  }
}

TEST(LinearCombinationTest, TakesATermAsItsTarget) {
  std::vector<float> a = Ramp(1);
  const std::vector<float> before = a;
  const std::vector<float> b = Ramp(2);
  const Term terms[] = {{Bytes(a), 1}, {Bytes(b), -1}};
  LinearCombination(terms, {Bytes(a)}, kCount);
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(a[i], before[i] - b[i]) << i;
}

}  // namespace
}  // namespace pelton
