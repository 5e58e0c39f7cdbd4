#include "algorithms/codec/quick_min_max.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include "gtest/gtest.h"

namespace pelton::codec {
namespace {

constexpr uint64_t kSeed = 20261126;

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }
float OfIntegers(uint32_t byte) { return std::bit_cast<float>(kBitsOfIntegers | byte); }

// A range of any magnitude, its ends up to some thousand times as far from zero as it is wide.
MinMax AnyRange(std::mt19937_64& random) {
  std::uniform_real_distribution<float> share(-1, 1);
  std::uniform_int_distribution<int> exponent(-40, 60);
  const float width = std::ldexp(1 + std::abs(share(random)), exponent(random));
  const float shift = std::ldexp(share(random), static_cast<int>(random() % 14));
  const float min = width * (shift + share(random));
  return {min, min + width};
}

TEST(QuickMinMaxTest, DecodesEveryByteToTheSameBits) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  int quick = 0;
  for (int i = 0; i < 20000; ++i) {
    const MinMaxScale scale = MinMaxScaleOf(AnyRange(random));
    if (!IsQuick(scale)) continue;
    ++quick;
    const QuickScale same = QuickScaleOf(scale);
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const float want = DecodeMinMax(static_cast<uint8_t>(byte), scale);
      ASSERT_EQ(Bits(QuickDecode(OfIntegers(byte), same)), Bits(want))
          << byte << " of scale " << scale.scale << ", upper " << scale.upper;
    }
  }
  EXPECT_GT(quick, 15000);
}

TEST(QuickMinMaxTest, EncodesEveryElementOfARangeToTheSameByte) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 20000; ++i) {
    const MinMax range = AnyRange(random);
    const MinMaxScale scale = MinMaxScaleOf(range);
    if (!IsQuick(scale)) continue;
    const QuickScale same = QuickScaleOf(scale);
    std::uniform_real_distribution<float> inside(range.min, range.max);
    for (int n = 0; n < 200; ++n) {
      // The ends, levels' borders, where ties are, and between.
      const float border = (scale.lower + static_cast<float>(n) + 0.5f) / scale.scale;
      for (const float x : {range.min, range.max, border, inside(random)}) {
        if (!(x >= range.min && x <= range.max)) continue;
        ASSERT_EQ(Bits(QuickEncode(x, same)) & 0xFF, EncodeMinMax(x, scale))
            << x << " of " << range.min << " to " << range.max;
      }
    }
  }
}

TEST(QuickMinMaxTest, IsNotForRangesThatFloatsHaveNoIntegersFor) {
  EXPECT_TRUE(IsQuick(MinMaxScaleOf({-1, 1})));
  EXPECT_TRUE(IsQuick(MinMaxScaleOf({0, 0})));
  EXPECT_FALSE(IsQuick(MinMaxScaleOf({1000, 1000})));
  EXPECT_FALSE(IsQuick(MinMaxScaleOf({1e6f, 1e6f + 1})));
  EXPECT_FALSE(IsQuick(MinMaxScaleOf({-1e30f, 1e30f})));
  EXPECT_FALSE(IsQuick(MinMaxScaleOf({-kLargestFloat, kLargestFloat})));
  EXPECT_FALSE(IsQuick(MinMaxScaleOf({NAN, NAN})));
  EXPECT_FALSE(IsQuick(MinMaxScaleOf({-INFINITY, 1})));
}

TEST(QuickQuotientTest, IsTheQuotientToTheLastBit) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<float> mantissa(1, 2);
  std::uniform_int_distribution<int> exponent(-40, 40);
  for (int i = 0; i < 5000000; ++i) {
    const float a = std::ldexp(mantissa(random), exponent(random));
    const float b = i % 2 == 0 ? static_cast<float>(1 + random() % 4096)
                               : std::ldexp(mantissa(random), exponent(random));
    ASSERT_EQ(Bits(QuickQuotient(a, b, 1.0f / b)), Bits(a / b)) << a << " / " << b;
    ASSERT_EQ(Bits(QuickQuotient(-a, b, 1.0f / b)), Bits(-a / b)) << -a << " / " << b;
  }
}

}  // namespace
}  // namespace pelton::codec
