// The parts that compressed exchanges are made of, each on its own.
#include <cstring>
#include <memory>
#include <vector>

#include "algorithms/codec/codec.h"
#include "algorithms/codec/reference.h"
#include "algorithms/stage/codec_runner.h"
#include "algorithms/stage/compressed_exchange.h"
#include "algorithms/stage/piece_codec.h"
#include "comm/reduction/reference.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

// Small whole numbers, which every dtype holds exactly.
std::vector<std::byte> Elements(uint64_t count, int first, DType dtype) {
  std::vector<float> floats(count);
  for (uint64_t i = 0; i < count; ++i)
    floats[i] = static_cast<float>(i % 100) + static_cast<float>(first);
  return codec::ElementsOfFloats(floats, dtype);
}

TEST(ChunksTest, CoverEveryElementOnce) {
  for (uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{32}, uint64_t{33}, uint64_t{1000},
                         (uint64_t{1} << 33) + 5}) {
    for (int32_t ranks : {1, 2, 3, 8, 1000}) {
      const Chunks chunks(count, ranks);
      uint64_t end = 0;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(chunks.BeginOf(rank), end);
        EXPECT_LE(chunks.CountOf(rank), chunks.largest_count());
        end += chunks.CountOf(rank);
      }
      EXPECT_EQ(end, count);
      EXPECT_EQ(chunks.CountOf(0), std::min(count, chunks.largest_count()));
      EXPECT_LT(chunks.largest_count(), count / static_cast<uint64_t>(ranks) + 1 + 32);
    }
  }
}

TEST(PieceCodecTest, SizesAreThoseOfItsPieces) {
  const std::shared_ptr<const Codec> codec = *MakeCodec("min_max_uint8", {});
  const PieceCodec pieces(codec, DType::kFloat32);
  const uint64_t piece = PieceCodec::kPieceCount;
  EXPECT_EQ(pieces.EncodedBytes(0), 0u);
  EXPECT_EQ(pieces.EncodedBytes(1), 64u);
  EXPECT_EQ(pieces.EncodedBytes(piece), 32 + piece);
  EXPECT_EQ(pieces.EncodedBytes(3 * piece + 1), 3 * (32 + piece) + 64);
  EXPECT_EQ(pieces.EncodedBytes(piece << 20), (32 + piece) << 20);
}

TEST(PieceCodecTest, AnOutlierSpoilsItsPieceAlone) {
  PieceCodec pieces(*MakeCodec("min_max_uint8", {}), DType::kFloat32);
  const uint64_t count = 2 * PieceCodec::kPieceCount;
  std::vector<float> source(count, 0.5f);
  source[3] = 1e30f;
  source[count - 1] = 0.25f;
  std::vector<std::byte> encoded(pieces.EncodedBytes(count) + 32);
  std::byte* const at = encoded.data() + 32 - reinterpret_cast<uintptr_t>(encoded.data()) % 32;
  pieces.Encode(reinterpret_cast<const std::byte*>(source.data()), count, nullptr, at);
  std::vector<float> target(count);
  pieces.Decode(at, count, reinterpret_cast<std::byte*>(target.data()));
  EXPECT_NE(target[4], 0.5f);
  EXPECT_NEAR(target[PieceCodec::kPieceCount], 0.5f, 1e-3);
  EXPECT_NEAR(target[count - 1], 0.25f, 1e-3);
}

TEST(PieceSumTest, EqualsTheReferenceInEveryDType) {
  for (DType dtype : kDTypes) {
    for (uint64_t ranks : {1, 2, 5}) {
      PieceSum sum(dtype, 1000);
      for (uint64_t count : {1000, 77}) {
        std::vector<std::vector<std::byte>> versions;
        std::vector<const std::byte*> pointers;
        sum.Begin(count);
        for (uint64_t rank = 0; rank < ranks; ++rank) {
          versions.push_back(Elements(count, static_cast<int>(rank * 17), dtype));
          std::memcpy(sum.next(), versions.back().data(), versions.back().size());
          sum.Add();
        }
        for (const auto& version : versions) pointers.push_back(version.data());
        std::vector<std::byte> expected(versions[0].size());
        ASSERT_TRUE(ReferenceReduce(pointers, expected.data(), count, dtype, ReduceOp::kAvg).ok());
        EXPECT_EQ(std::memcmp(sum.Finish(ranks), expected.data(), expected.size()), 0)
            << dtype << ", " << ranks << " ranks";
      }
    }
  }
}

TEST(GapsTest, OnlyGapsBecomeZeros) {
  PlanOptions options;
  options.world_size = WorldSize(7);
  const Plan plan =
      *Plan::Build({{"a", DType::kFloat32, 3, {}}, {"b", DType::kFloat32, 17, {}}}, options);
  const BucketLayout& layout = plan.buckets()[0];
  std::vector<float> flat(layout.flat_count, 5);
  ZeroGaps(plan, layout, reinterpret_cast<std::byte*>(flat.data()));
  // "b" comes first: elements 0 to 16 of 32, then "a": 32 to 34 of 48, then
  // padding.
  for (uint64_t i = 0; i < layout.flat_count; ++i) {
    const bool is_gap = (i >= 17 && i < 32) || (i >= 35 && i < 48);
    EXPECT_EQ(flat[i], is_gap ? 0 : 5) << i;
  }
}

}  // namespace
}  // namespace pelton
