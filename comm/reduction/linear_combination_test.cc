#include "comm/reduction/linear_combination.h"

#include <cfenv>
#include <cstring>
#include <vector>

#include "comm/reduction/half.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

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

TEST(LinearCombinationTest, TheThreadsFloatingPointStateChangesNothing) {
  const std::vector<float> a = Ramp(0.1F);
  const std::vector<float> b = Ramp(-0.3F);
  const Term terms[] = {{Bytes(a), 1.0 / 3}, {Bytes(b), 2.0 / 3}};
  std::vector<float> want(kCount);
  LinearCombination(terms, {Bytes(want)}, kCount);
  std::vector<float> got(kCount);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  LinearCombination(terms, {Bytes(got)}, kCount);
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(got, want);
}

TEST(LinearCombinationTest, ReadsAndFillsNumbersOfEitherType) {
  std::vector<float> floats(3, 7);
  FillNumbers({Bytes(floats), DType::kFloat32}, 0.1, 2);
  EXPECT_EQ(floats, (std::vector<float>{0.1F, 0.1F, 7}));
  EXPECT_EQ(NumberAt(Bytes(floats), DType::kFloat32), static_cast<double>(0.1F));
  std::vector<double> doubles(3, 7);
  FillNumbers({Bytes(doubles), DType::kFloat64}, 0.1, 2);
  EXPECT_EQ(doubles, (std::vector<double>{0.1, 0.1, 7}));
  EXPECT_EQ(NumberAt(Bytes(doubles), DType::kFloat64), 0.1);
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

// One element at a time, by the rules of the header.
double ReadElement(const std::byte* from, DType dtype) {
  uint16_t bits = 0;
  float single = 0;
  double wide = 0;
  if (dtype == DType::kFloat64) std::memcpy(&wide, from, 8);
  if (dtype == DType::kFloat32) std::memcpy(&single, from, 4);
  if (SizeOf(dtype) == 2) std::memcpy(&bits, from, 2);
  if (dtype == DType::kFloat16) single = FloatFromFloat16(bits);
  if (dtype == DType::kBFloat16) single = FloatFromBFloat16(bits);
  return dtype == DType::kFloat64 ? wide : static_cast<double>(single);
}

void WriteElement(double value, DType dtype, std::byte* to) {
  const auto single = static_cast<float>(value);
  const uint16_t bits =
      dtype == DType::kFloat16 ? Float16FromFloat(single) : BFloat16FromFloat(single);
  if (dtype == DType::kFloat64) std::memcpy(to, &value, 8);
  if (dtype == DType::kFloat32) std::memcpy(to, &single, 4);
  if (SizeOf(dtype) == 2) std::memcpy(to, &bits, 2);
}

double ReferenceElement(absl::Span<const Term> terms, uint64_t index, bool is_wide) {
  double wide = 0;
  float single = 0;
  for (size_t t = 0; t < terms.size(); ++t) {
    const double x = ReadElement(terms[t].data + index * SizeOf(terms[t].dtype), terms[t].dtype);
    const double wide_product = terms[t].factor * x;
    const float product = static_cast<float>(terms[t].factor) * static_cast<float>(x);
    wide = t == 0 ? wide_product : wide + wide_product;
    single = t == 0 ? product : single + product;
  }
  return is_wide ? wide : static_cast<double>(single);
}

// Three terms of `dtypes`, none aligned, into a target of `dtype`, bit by bit.
void ExpectCombination(const DType (&dtypes)[3], DType dtype, uint64_t count) {
  std::vector<std::byte> memory[3];
  std::vector<Term> terms;
  bool is_wide = dtype == DType::kFloat64;
  for (int t = 0; t < 3; ++t) {
    const size_t size = SizeOf(dtypes[t]);
    memory[t].resize(1 + count * size);
    for (uint64_t i = 0; i < count; ++i) {
      const double value = (static_cast<double>(i * 7919 % 1013) - 500) / (3 + t);
      WriteElement(value, dtypes[t], memory[t].data() + 1 + i * size);
    }
    terms.push_back({memory[t].data() + 1, 1.0 / (t + 3), dtypes[t]});
    is_wide |= dtypes[t] == DType::kFloat64;
  }
  std::vector<std::byte> target(2 + count * SizeOf(dtype), std::byte{0xAB});
  LinearCombination(terms, {target.data() + 1, dtype}, count);
  for (uint64_t i = 0; i < count; ++i) {
    std::byte expected[8] = {};
    WriteElement(ReferenceElement(terms, i, is_wide), dtype, expected);
    ASSERT_EQ(std::memcmp(target.data() + 1 + i * SizeOf(dtype), expected, SizeOf(dtype)), 0)
        << dtype << " element " << i << " of " << count;
  }
  EXPECT_EQ(target.front(), std::byte{0xAB});
  EXPECT_EQ(target.back(), std::byte{0xAB});
}

TEST(LinearCombinationTest, IsTheSameForEveryTypeLengthAndInstructionSet) {
  constexpr DType kAll[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    for (const DType dtype : kAll) {
      for (uint64_t count = 0; count < 70; ++count) {
        ExpectCombination({dtype, dtype, dtype}, dtype, count);
      }
      for (const DType other : kAll) ExpectCombination({dtype, other, dtype}, other, 2061);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace
}  // namespace pelton
