#include "comm/reduction/reduction.h"

#include <cfenv>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "comm/reduction/half.h"
#include "comm/reduction/reducible.h"
#include "comm/reduction/reference.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace pelton {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum,    ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax,    ReduceOp::kBitOr,   ReduceOp::kBitAnd,
                             ReduceOp::kBitXor, ReduceOp::kAvg};

// Bytes that mean every kind of number: plain ones, and by chance NaN, infinity, denormals, zeros
// of both signs.
std::vector<std::byte> RandomElements(size_t count, DType dtype, std::mt19937_64& random) {
  std::vector<std::byte> bytes(count * SizeOf(dtype));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  if (!IsFloatingPoint(dtype)) return bytes;
  const float special[] = {0.0f, -0.0f, 1e-40f, 65504.0f, INFINITY, -INFINITY, NAN};
  for (size_t i = 0; i < count; ++i) {
    float value = std::normal_distribution<float>(0, 100)(random);
    if (random() % 8 == 0) value = special[random() % std::size(special)];
    if (random() % 4 == 0) continue;  // stays any bit pattern
    std::byte* const at = bytes.data() + i * SizeOf(dtype);
    const double wide = value;
    const uint16_t half =
        dtype == DType::kFloat16 ? Float16FromFloat(value) : BFloat16FromFloat(value);
    if (SizeOf(dtype) == 2) std::memcpy(at, &half, 2);
    if (dtype == DType::kFloat32) std::memcpy(at, &value, 4);
    if (dtype == DType::kFloat64) std::memcpy(at, &wide, 8);
  }
  return bytes;
}

bool IsNan(const std::byte* at, DType dtype) {
  uint16_t half;
  float single;
  double wide;
  std::memcpy(&half, at, sizeof half);
  switch (dtype) {
    case DType::kFloat16:
      return std::isnan(FloatFromFloat16(half));
    case DType::kBFloat16:
      return std::isnan(FloatFromBFloat16(half));
    case DType::kFloat32:
    case DType::kComplex64:
      std::memcpy(&single, at, sizeof single);
      return std::isnan(single);
    case DType::kFloat64:
    case DType::kComplex128:
      std::memcpy(&wide, at, sizeof wide);
      return std::isnan(wide);
    default:
      return false;
  }
}

// Bitwise the same, but that any NaN is as good as another.
::testing::AssertionResult Same(const std::byte* got, const std::byte* want, size_t count,
                                DType dtype) {
  const bool is_complex = dtype == DType::kComplex64 || dtype == DType::kComplex128;
  const size_t part = is_complex ? SizeOf(dtype) / 2 : SizeOf(dtype);
  for (size_t i = 0; i < count * SizeOf(dtype) / part; ++i) {
    if (std::memcmp(got + i * part, want + i * part, part) == 0) continue;
    if (IsNan(got + i * part, dtype) && IsNan(want + i * part, dtype)) continue;
    return ::testing::AssertionFailure() << "element " << i << " of " << count;
  }
  return ::testing::AssertionSuccess();
}

struct Case {
  DType dtype;
  ReduceOp op;
  size_t source_count;
  size_t count;
  size_t offset;  // bytes off any alignment
};

void ExpectLikeReference(const Case& c, std::mt19937_64& random) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<const std::byte*> sources;
  for (size_t s = 0; s < c.source_count; ++s) {
    memory.push_back(RandomElements(c.count + 16, c.dtype, random));
    sources.push_back(memory.back().data() + c.offset);
  }
  const size_t bytes = c.count * SizeOf(c.dtype);
  std::vector<std::byte> want(bytes + 1);
  ASSERT_TRUE(ReferenceReduce(sources, want.data(), c.count, c.dtype, c.op).ok());

  std::vector<std::byte> apart(bytes + 16, std::byte{0x5A});
  // In place on the first source, and apart, at once.
  std::byte* const targets[] = {apart.data() + c.offset, memory[0].data() + c.offset};
  Reduce(sources, targets, c.count, c.dtype, c.op);
  for (std::byte* target : targets) {
    EXPECT_TRUE(Same(target, want.data(), c.count, c.dtype))
        << c.dtype << " " << c.op << " of " << c.source_count << ", offset " << c.offset;
  }
  for (size_t i = bytes + c.offset; i < apart.size(); ++i) {
    ASSERT_EQ(apart[i], std::byte{0x5A}) << "wrote past the end";
  }
}

// All pairs, several sizes around the vectors' and blocks' lengths.
void ExpectAllLikeReference(uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int d = 0; d < kDTypeCount; ++d) {
    for (const ReduceOp op : kOps) {
      const DType dtype = static_cast<DType>(d);
      if (!CheckReducible(dtype, op).ok()) continue;
      for (const size_t count : {0, 1, 7, 64, 129, 1023, 1500}) {
        ExpectLikeReference({dtype, op, 1 + random() % 5, count, random() % 9}, random);
      }
    }
  }
}

TEST(ReductionTest, IsBitwiseTheReferenceOnEveryInstructionSet) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    ExpectAllLikeReference(20260801);
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(ReductionTest, ManySourcesAreTakenInOrder) {
  std::mt19937_64 random(7);
  for (const size_t sources : {8, 33, 300}) {
    ExpectLikeReference({DType::kFloat32, ReduceOp::kSum, sources, 100, 4}, random);
    ExpectLikeReference({DType::kBFloat16, ReduceOp::kAvg, sources, 100, 2}, random);
    ExpectLikeReference({DType::kUInt8, ReduceOp::kAvg, sources, 100, 0}, random);
  }
}

// Which of a rank's threads computes is chance.
TEST(ReductionTest, TheThreadsFloatingPointStateChangesNothing) {
  std::mt19937_64 random(13);
  const size_t count = 1000;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
    const std::vector<std::byte> a = RandomElements(count, DType::kFloat32, random);
    const std::vector<std::byte> b = RandomElements(count, DType::kFloat32, random);
    const std::byte* const sources[] = {a.data(), b.data()};
    std::vector<std::byte> want(a.size());
    ASSERT_TRUE(ReferenceReduce(sources, want.data(), count, DType::kFloat32, op).ok());
    std::vector<std::byte> got(a.size());
    std::byte* const target = got.data();
    ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
    Reduce(sources, {&target, 1}, count, DType::kFloat32, op);
    std::fesetround(FE_TONEAREST);
    EXPECT_TRUE(Same(got.data(), want.data(), count, DType::kFloat32)) << op;
  }
}

// Two sums of two ranks each, then their mean over four.
TEST(ReductionTest, AMeanOfSumsDividesByTheNumberOfRanks) {
  std::mt19937_64 random(11);
  for (int d = 0; d < kDTypeCount; ++d) {
    const DType dtype = static_cast<DType>(d);
    if (!CheckReducible(dtype, ReduceOp::kAvg).ok()) continue;
    const size_t count = 1027;
    const std::vector<std::byte> left = RandomElements(count, dtype, random);
    const std::vector<std::byte> right = RandomElements(count, dtype, random);
    std::vector<std::byte> zeros(left.size());
    // Zeros change no sum but that of two -0, and one of them stands on both sides.
    const std::byte* const all[] = {left.data(), right.data(), zeros.data(), zeros.data()};
    std::vector<std::byte> want(left.size());
    ASSERT_TRUE(ReferenceReduce(all, want.data(), count, dtype, ReduceOp::kAvg).ok());
    std::vector<std::byte> mean(left.size());
    std::byte* const target = mean.data();
    const std::byte* const sums[] = {left.data(), right.data(), zeros.data()};
    std::fesetround(FE_UPWARD);  // of no effect
    ReduceToMean(sums, {&target, 1}, count, dtype, 4);
    std::fesetround(FE_TONEAREST);
    EXPECT_TRUE(Same(mean.data(), want.data(), count, dtype)) << dtype;
  }
}

TEST(ReductionTest, EveryFloat16PatternSurvivesAReductionOfOne) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<uint16_t> result(all.size());
    const std::byte* const source = reinterpret_cast<const std::byte*>(all.data());
    std::byte* const target = reinterpret_cast<std::byte*>(result.data());
    Reduce({&source, 1}, {&target, 1}, all.size(), dtype, ReduceOp::kSum);
    EXPECT_TRUE(Same(target, source, all.size(), dtype)) << dtype;
  }
}

}  // namespace
}  // namespace pelton
