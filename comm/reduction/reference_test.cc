#include "comm/reduction/reference.h"

#include <cmath>
#include <complex>
#include <limits>
#include <vector>

#include "comm/reduction/half.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Reduces vectors, one per rank.
template <typename T>
std::vector<T> Reduced(DType dtype, ReduceOp op, const std::vector<std::vector<T>>& ranks) {
  std::vector<const std::byte*> sources;
  for (const auto& rank : ranks) sources.push_back(reinterpret_cast<const std::byte*>(rank.data()));
  std::vector<T> target(ranks[0].size());
  EXPECT_EQ(ReferenceReduce(sources, reinterpret_cast<std::byte*>(target.data()), target.size(),
                            dtype, op),
            absl::OkStatus());
  return target;
}

uint16_t Half(float value) { return Float16FromFloat(value); }

TEST(ReferenceTest, SumsFloatsFromTheLeft) {
  const float big = 16777216;  // 2^24: adding 1 to it is lost, adding 2 is not
  EXPECT_THAT(Reduced<float>(DType::kFloat32, ReduceOp::kSum, {{big, 1}, {1, 1}, {1, big}}),
              ElementsAre(big, big + 2));
}

TEST(ReferenceTest, AveragesAfterTheSum) {
  const float max = std::numeric_limits<float>::max();
  EXPECT_THAT(Reduced<float>(DType::kFloat32, ReduceOp::kAvg, {{max, 1}, {max, 2}}),
              ElementsAre(std::numeric_limits<float>::infinity(), 1.5f));
}

TEST(ReferenceTest, TheLastPartOfAMeanIsDividedByTheNumberOfAllSources) {
  const float parts[] = {12, 4};
  const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(&parts[0]),
                                      reinterpret_cast<const std::byte*>(&parts[1])};
  float mean = 0;
  std::byte* const target = reinterpret_cast<std::byte*>(&mean);
  EXPECT_EQ(ReferenceReduceToMean(sources, target, 1, DType::kFloat32, 4), absl::OkStatus());
  EXPECT_EQ(mean, 4);
  EXPECT_FALSE(ReferenceReduceToMean(sources, target, 1, DType::kBool, 4).ok());
}

TEST(ReferenceTest, Float16AccumulatesInFloatAndRoundsOnce) {
  // 2048 + 1 is no float16: rounding at each step would give 2048.
  EXPECT_THAT(
      Reduced<uint16_t>(DType::kFloat16, ReduceOp::kSum, {{Half(2048)}, {Half(1)}, {Half(1)}}),
      ElementsAre(Half(2050)));
  // The sum of 65504 twice is no float16 either, the average is.
  EXPECT_THAT(Reduced<uint16_t>(DType::kFloat16, ReduceOp::kAvg, {{Half(65504)}, {Half(65504)}}),
              ElementsAre(Half(65504)));
}

TEST(ReferenceTest, BFloat16AccumulatesInFloatAndRoundsOnce) {
  auto b = BFloat16FromFloat;
  EXPECT_THAT(Reduced<uint16_t>(DType::kBFloat16, ReduceOp::kSum, {{b(256)}, {b(1)}, {b(1)}}),
              ElementsAre(b(258)));
}

TEST(ReferenceTest, IntegersWrapInTheirOwnWidth) {
  EXPECT_THAT(Reduced<int8_t>(DType::kInt8, ReduceOp::kSum, {{127, -128}, {1, -1}}),
              ElementsAre(-128, 127));
  const int64_t max = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Reduced<int64_t>(DType::kInt64, ReduceOp::kSum, {{max}, {1}}),
              ElementsAre(std::numeric_limits<int64_t>::min()));
  EXPECT_THAT(Reduced<int16_t>(DType::kInt16, ReduceOp::kProduct, {{-32768, 300}, {-1, 300}}),
              ElementsAre(-32768, static_cast<int16_t>(90000)));
}

TEST(ReferenceTest, IntegerAveragesTruncateTowardZero) {
  EXPECT_THAT(Reduced<int32_t>(DType::kInt32, ReduceOp::kAvg, {{3, -3}, {4, -4}}),
              ElementsAre(3, -3));
  EXPECT_THAT(Reduced<uint8_t>(DType::kUInt8, ReduceOp::kAvg, {{200, 5}, {200, 2}}),
              ElementsAre(72, 3));  // the sum wraps: 400 - 256 = 144
}

TEST(ReferenceTest, ANanWinsAtEveryRank) {
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const auto result =
        Reduced<float>(DType::kFloat32, op, {{kNan, 1, 1}, {1, kNan, 1}, {2, 2, kNan}});
    for (float value : result) EXPECT_TRUE(std::isnan(value)) << NameOf(op);
  }
}

TEST(ReferenceTest, OfEqualValuesTheFirstStays) {
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const auto result = Reduced<double>(DType::kFloat64, op, {{-0.0, 0.0}, {0.0, -0.0}});
    EXPECT_TRUE(std::signbit(result[0])) << NameOf(op);
    EXPECT_FALSE(std::signbit(result[1])) << NameOf(op);
  }
}

TEST(ReferenceTest, MinAndMaxKeepSigns) {
  EXPECT_THAT(Reduced<int64_t>(DType::kInt64, ReduceOp::kMin, {{1, -5}, {-2, 7}}),
              ElementsAre(-2, -5));
  EXPECT_THAT(Reduced<uint8_t>(DType::kUInt8, ReduceOp::kMax, {{1, 255}, {200, 7}}),
              ElementsAre(200, 255));
}

TEST(ReferenceTest, BitOperationsActOnBits) {
  const std::vector<std::vector<int32_t>> ranks = {{0b1100}, {0b1010}};
  EXPECT_THAT(Reduced(DType::kInt32, ReduceOp::kBitOr, ranks), ElementsAre(0b1110));
  EXPECT_THAT(Reduced(DType::kInt32, ReduceOp::kBitAnd, ranks), ElementsAre(0b1000));
  EXPECT_THAT(Reduced(DType::kInt32, ReduceOp::kBitXor, ranks), ElementsAre(0b0110));
}

TEST(ReferenceTest, BoolTreatsEveryByteButZeroAsTrue) {
  const std::vector<std::vector<uint8_t>> ranks = {{2, 0, 3, 0}, {4, 5, 0, 0}};
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBitOr}) {
    EXPECT_THAT(Reduced(DType::kBool, op, ranks), ElementsAre(1, 1, 1, 0)) << NameOf(op);
  }
  for (ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kBitAnd}) {
    EXPECT_THAT(Reduced(DType::kBool, op, ranks), ElementsAre(1, 0, 0, 0)) << NameOf(op);
  }
  EXPECT_THAT(Reduced(DType::kBool, ReduceOp::kBitXor, ranks), ElementsAre(0, 1, 1, 0));
}

TEST(ReferenceTest, ComplexSumsMultipliesAndAverages) {
  using C = std::complex<float>;
  const std::vector<std::vector<C>> ranks = {{C(1, 2)}, {C(3, -4)}};
  EXPECT_THAT(Reduced(DType::kComplex64, ReduceOp::kSum, ranks), ElementsAre(C(4, -2)));
  EXPECT_THAT(Reduced(DType::kComplex64, ReduceOp::kProduct, ranks), ElementsAre(C(11, 2)));
  EXPECT_THAT(Reduced(DType::kComplex64, ReduceOp::kAvg, ranks), ElementsAre(C(2, -1)));
}

TEST(ReferenceTest, TargetMayBeASource) {
  std::vector<float> first = {1, 2};
  std::vector<float> second = {10, 20};
  auto* target = reinterpret_cast<std::byte*>(second.data());
  const std::byte* sources[] = {reinterpret_cast<const std::byte*>(first.data()), target};
  ASSERT_EQ(ReferenceReduce(sources, target, 2, DType::kFloat32, ReduceOp::kSum), absl::OkStatus());
  EXPECT_THAT(second, ElementsAre(11, 22));
}

TEST(ReferenceTest, OneSourceIsCopied) {
  EXPECT_THAT(Reduced<int32_t>(DType::kInt32, ReduceOp::kAvg, {{-7, 7}}), ElementsAre(-7, 7));
}

TEST(ReducibleTest, ErrorsNameBoth) {
  const absl::Status bits = CheckReducible(DType::kFloat16, ReduceOp::kBitOr);
  EXPECT_EQ(bits.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bits.message()), HasSubstr("float16"));
  EXPECT_THAT(std::string(bits.message()), HasSubstr("BOR"));
}

TEST(ReducibleTest, TheTableIsComplete) {
  int supported = 0;
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    for (int op = 0; op <= 10; ++op) {
      const auto status = CheckReducible(static_cast<DType>(dtype), static_cast<ReduceOp>(op));
      supported += status.ok() ? 1 : 0;
    }
  }
  EXPECT_EQ(supported, 4 * 5 + 5 * 8 + 7 + 2 * 3);
  EXPECT_FALSE(CheckReducible(static_cast<DType>(12), ReduceOp::kSum).ok());
  EXPECT_FALSE(CheckReducible(DType::kFloat32, static_cast<ReduceOp>(4)).ok());
}

TEST(ReferenceTest, RefusesAnUnsupportedPair) {
  float value = 1;
  auto* target = reinterpret_cast<std::byte*>(&value);
  const std::byte* sources[] = {target};
  EXPECT_EQ(ReferenceReduce(sources, target, 1, DType::kFloat32, ReduceOp::kBitAnd).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pelton
