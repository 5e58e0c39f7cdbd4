#include "comm/reduction/half.h"

#include <bit>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace pelton {
namespace {

bool IsNanFloat16(uint32_t bits) { return (bits & 0x7c00) == 0x7c00 && (bits & 0x3ff) != 0; }
bool IsNanBFloat16(uint32_t bits) { return (bits & 0x7f80) == 0x7f80 && (bits & 0x7f) != 0; }

TEST(HalfTest, EveryFloat16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = FloatFromFloat16(static_cast<uint16_t>(bits));
    if (IsNanFloat16(bits)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(IsNanFloat16(Float16FromFloat(value))) << bits;
    } else {
      EXPECT_EQ(Float16FromFloat(value), bits);
    }
  }
}

TEST(HalfTest, EveryBFloat16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = FloatFromBFloat16(static_cast<uint16_t>(bits));
    if (IsNanBFloat16(bits)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(IsNanBFloat16(BFloat16FromFloat(value))) << bits;
    } else {
      EXPECT_EQ(BFloat16FromFloat(value), bits);
    }
  }
}

TEST(HalfTest, KnownFloat16Values) {
  EXPECT_EQ(FloatFromFloat16(0x3c00), 1.0f);
  EXPECT_EQ(FloatFromFloat16(0xc000), -2.0f);
  EXPECT_EQ(FloatFromFloat16(0x7bff), 65504.0f);
  EXPECT_EQ(FloatFromFloat16(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(FloatFromFloat16(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::signbit(FloatFromFloat16(0x8000)));
}

// Between two neighbours: just below the middle rounds down, just above it up, the middle to even.
void ExpectRoundsBetween(uint16_t low, float (*widen)(uint16_t), uint16_t (*narrow)(float)) {
  const auto high = static_cast<uint16_t>(low + 1);
  const double middle = (static_cast<double>(widen(low)) + static_cast<double>(widen(high))) / 2;
  const auto exact = static_cast<float>(middle);
  if (static_cast<double>(exact) != middle) return;  // not a float: no tie can be built
  EXPECT_EQ(narrow(exact), (low & 1) == 0 ? low : high) << low;
  EXPECT_EQ(narrow(std::nextafter(exact, 0.0f)), low) << low;
  EXPECT_EQ(narrow(std::nextafter(exact, std::numeric_limits<float>::infinity())), high) << low;
}

TEST(HalfTest, Float16RoundsHalfToEvenBetweenAllNeighbours) {
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    ExpectRoundsBetween(low, FloatFromFloat16, Float16FromFloat);
  }
}

TEST(HalfTest, BFloat16RoundsHalfToEvenBetweenAllNeighbours) {
  for (uint16_t low = 0; low < 0x7f7f; ++low) {
    ExpectRoundsBetween(low, FloatFromBFloat16, BFloat16FromFloat);
  }
}

TEST(HalfTest, OverflowGivesInfinity) {
  EXPECT_EQ(Float16FromFloat(65519.0f), 0x7bff);
  EXPECT_EQ(Float16FromFloat(65520.0f), 0x7c00);
  EXPECT_EQ(Float16FromFloat(-1e9f), 0xfc00);
  EXPECT_EQ(BFloat16FromFloat(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(BFloat16FromFloat(-std::numeric_limits<float>::infinity()), 0xff80);
}

TEST(HalfTest, ANanWhosePayloadIsInTheLostBitsStaysANan) {
  const float value = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(IsNanFloat16(Float16FromFloat(value)));
  EXPECT_TRUE(IsNanBFloat16(BFloat16FromFloat(value)));
}

}  // namespace
}  // namespace pelton
