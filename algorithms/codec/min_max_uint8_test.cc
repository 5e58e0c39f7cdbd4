// MinMaxUInt8's bytes, worked out by hand from Bagua's formulas.
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "algorithms/codec/codec.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using Bytes = std::vector<int>;

template <typename T>
Bytes Encoded(const std::vector<T>& elements, DType dtype) {
  const auto codec = *MakeCodec("min_max_uint8", {});
  alignas(32) std::byte encoded[64] = {};
  EXPECT_EQ(codec->EncodedBytes(elements.size(), dtype), elements.empty() ? 32u : 64u);
  codec->Encode(reinterpret_cast<const std::byte*>(elements.data()), elements.size(), dtype,
                encoded);
  Bytes bytes;
  for (size_t i = 0; i < 32 + elements.size(); ++i) bytes.push_back(static_cast<int>(encoded[i]));
  return bytes;
}

template <typename T>
std::vector<T> RoundTrip(const std::vector<T>& elements, DType dtype) {
  const auto codec = *MakeCodec("min_max_uint8", {});
  alignas(32) std::byte encoded[64];
  codec->Encode(reinterpret_cast<const std::byte*>(elements.data()), elements.size(), dtype,
                encoded);
  std::vector<T> decoded(elements.size());
  codec->Decode(encoded, elements.size(), dtype, reinterpret_cast<std::byte*>(decoded.data()));
  return decoded;
}

// `header`, zeros up to byte 32, `payload`.
Bytes Chunk(Bytes header, const Bytes& payload) {
  header.resize(32);
  header.insert(header.end(), payload.begin(), payload.end());
  return header;
}

TEST(MinMaxUInt8Test, SpreadsTheRangeOver256Levels) {
  // scale = 255 / 2.55 = 100, upper = 155, lower = -100. 1.55f is 0x3FC66666.
  EXPECT_EQ(Encoded<float>({-1.0f, 0.0f, 0.5f, 1.55f}, DType::kFloat32),
            Chunk({0x00, 0x00, 0x80, 0xBF, 0x66, 0x66, 0xC6, 0x3F}, {0, 100, 150, 255}));
}

TEST(MinMaxUInt8Test, RoundsTiesToEven) {
  // scale = 255 / (255 + 1e-7), which is 1 in float32; upper = 255, lower = 0.
  const std::vector<float> elements = {0.0f, 255.0f, 0.5f, 1.5f, 2.5f};
  EXPECT_EQ(Encoded(elements, DType::kFloat32),
            Chunk({0, 0, 0, 0, 0x00, 0x00, 0x7F, 0x43}, {0, 255, 0, 2, 2}));
  EXPECT_EQ(RoundTrip(elements, DType::kFloat32),
            (std::vector<float>{0.0f, 255.0f, 0.0f, 2.0f, 2.0f}));
}

TEST(MinMaxUInt8Test, SaturatesATieBelowTheSmallestLevel) {
  // scale = 1, upper = rint(255.5) = 256, lower = 1; 0.5 rounds to 0, which is -1 from there.
  const std::vector<float> elements = {0.5f, 255.5f};
  EXPECT_EQ(Encoded(elements, DType::kFloat32),
            Chunk({0x00, 0x00, 0x00, 0x3F, 0x00, 0x80, 0x7F, 0x43}, {0, 255}));
  EXPECT_EQ(RoundTrip(elements, DType::kFloat32), (std::vector<float>{1.0f, 256.0f}));
}

TEST(MinMaxUInt8Test, KeepsBoundsOfFloat16InFloat16) {
  // 1, 2, 3: scale = 127.5, upper = rint(382.5) = 382, lower = 127; rint(127.5) - 127 = 1,
  // 255 - 127 = 128, 255. Back: 128 / 127.5 = 1.0039, 2, 382 / 127.5 = 2.9961.
  const std::vector<uint16_t> elements = {0x3C00, 0x4000, 0x4200};
  EXPECT_EQ(Encoded(elements, DType::kFloat16), Chunk({0x00, 0x3C, 0x00, 0x42}, {1, 128, 255}));
  EXPECT_EQ(RoundTrip(elements, DType::kFloat16), (std::vector<uint16_t>{0x3C04, 0x4000, 0x41FE}));
}

TEST(MinMaxUInt8Test, KeepsBoundsOfBFloat16AndFloat64InTheirTypes) {
  // -1 and 1: scale = 255 / (2 + 1e-7) = 127.5, upper = 128 (a tie), lower = -127; -1 gives
  // -128, one below.
  EXPECT_EQ(Encoded<uint16_t>({0xBF80, 0x3F80}, DType::kBFloat16),
            Chunk({0x80, 0xBF, 0x80, 0x3F}, {0, 255}));
  EXPECT_EQ(Encoded<double>({-1.0, 1.0}, DType::kFloat64),
            Chunk({0, 0, 0, 0, 0, 0, 0xF0, 0xBF, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F}, {0, 255}));
}

TEST(MinMaxUInt8Test, KeepsZerosAndNothing) {
  EXPECT_EQ(Encoded<float>({}, DType::kFloat32), Chunk({}, {}));
  EXPECT_EQ(Encoded<float>({0.0f, -0.0f}, DType::kFloat32), Chunk({}, {255, 255}));
  EXPECT_EQ(RoundTrip<float>({0.0f, -0.0f}, DType::kFloat32), (std::vector<float>{0.0f, 0.0f}));
}

TEST(MinMaxUInt8Test, KeepsConstantsToTheLastBits) {
  for (const float constant : {1.0f, -1.0f, 1e-3f, 0.3f, 1000.0f, -7e10f}) {
    for (const float back : RoundTrip<float>({constant, constant, constant}, DType::kFloat32)) {
      EXPECT_NEAR(back, constant, 2e-7 * std::fabs(constant) + 2e-10);
    }
  }
}

TEST(MinMaxUInt8Test, MakesTheWholeChunkNaNWhereSomethingIsNotFinite) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const float back : RoundTrip<float>({1.0f, bad, -3.0f, 0.0f}, DType::kFloat32)) {
      EXPECT_TRUE(std::isnan(back)) << "from " << bad << " came " << back;
    }
  }
  // A range beyond float32.
  for (const float back : RoundTrip<float>({3e38f, -3e38f, 0.0f}, DType::kFloat32)) {
    EXPECT_TRUE(std::isnan(back)) << back;
  }
}

}  // namespace
}  // namespace pelton
