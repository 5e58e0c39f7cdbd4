// Messages of block_uint8, block_int4, one_bit and top_k, worked out by hand from their formulas:
// codec/reference.h shares those with the codecs, and would follow them into a mistake.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/codec/codec.h"
#include "algorithms/codec/reference.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::codec {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<int>;
using ::testing::ElementsAreArray;
using ::testing::FloatEq;
using ::testing::Pointwise;

// Two parts of 32 bytes each, which is what such small tensors take.
Bytes Parts(Bytes first, const Bytes& second) {
  first.resize(32);
  first.insert(first.end(), second.begin(), second.end());
  first.resize(64);
  return first;
}

// A codec at work on one tensor. Threads: a value. Owns: the message.
struct Message {
  Message(const std::string& name, const CodecOptions& options, const Floats& elements,
          DType type = DType::kFloat32)
      : codec(*MakeCodec(name, options)), count(elements.size()), dtype(type) {
    const std::vector<std::byte> source = ElementsOfFloats(elements, dtype);
    EXPECT_EQ(codec->EncodedBytes(count, dtype), sizeof(data));
    codec->Encode(source.data(), count, dtype, data);
  }

  Bytes bytes() const {
    Bytes result;
    for (const std::byte byte : data) result.push_back(static_cast<int>(byte));
    return result;
  }
  Floats decoded() const {
    std::vector<std::byte> target(count * SizeOf(dtype));
    codec->Decode(data, count, dtype, target.data());
    return FloatsOfElements(target.data(), count, dtype);
  }

  std::unique_ptr<Codec> codec;
  uint64_t count;
  DType dtype;
  alignas(32) std::byte data[64];
};

// m = 127: a level is 1, and 2.5 is a tie, which goes to 2.
TEST(HandVectorsTest, BlockUInt8HasLevelsAroundZero) {
  const Message message("block_uint8", {}, {127, -127, 0, 2.5f});
  EXPECT_THAT(message.bytes(),
              ElementsAreArray(Parts({0x00, 0x00, 0x80, 0x3F}, {255, 1, 128, 130})));
  EXPECT_THAT(message.decoded(), ElementsAreArray({127.0f, -127.0f, 0.0f, 2.0f}));
}

// m = 0.5: 254 levels a unit, so -63.5 (a tie: -64) and 25.4; back, times 0.5 / 127.
TEST(HandVectorsTest, BlockUInt8ScalesByTheLargestMagnitude) {
  const Message message("block_uint8", {}, {0.5f, -0.25f, 0.1f});
  const Bytes bytes = message.bytes();
  EXPECT_THAT(Bytes(bytes.begin() + 32, bytes.begin() + 36), ElementsAreArray({255, 64, 153, 0}));
  EXPECT_THAT(message.decoded(), Pointwise(FloatEq(), Floats{0.5f, -0.25196850f, 0.098425197f}));
}

// Two elements a byte, the first in the low bits: 15 and 1, 8 and 10 (2.5 goes to 2), 4 (-3.5 goes
// to -4) and nothing.
TEST(HandVectorsTest, BlockInt4HasTwoElementsAByte) {
  const Message message("block_int4", {}, {7, -7, 0, 2.5f, -3.5f});
  EXPECT_THAT(message.bytes(),
              ElementsAreArray(Parts({0x00, 0x00, 0x80, 0x3F}, {0x1F, 0xA8, 0x04})));
  EXPECT_THAT(message.decoded(), ElementsAreArray({7.0f, -7.0f, 0.0f, 2.0f, -4.0f}));
}

TEST(HandVectorsTest, BlockInt4ScalesByTheLargestMagnitude) {
  const Message message("block_int4", {}, {-1.75f, 0.5f, 0.3f});  // 4 levels a unit: -7, 2, 1.2
  EXPECT_THAT(message.decoded(), ElementsAreArray({-1.75f, 0.5f, 0.25f}));
}

// (3 + 1 + 0 + 0 + 4) / 5 = 1.6, which is 0x3FCCCCCD; bits 1 and 3 are negative.
TEST(HandVectorsTest, OneBitSendsTheMeanMagnitude) {
  const Message message("one_bit", {}, {3, -1, 0, -0.0f, 4});
  EXPECT_THAT(message.bytes(), ElementsAreArray(Parts({0xCD, 0xCC, 0xCC, 0x3F}, {0b01010})));
  EXPECT_THAT(message.decoded(), ElementsAreArray({1.6f, -1.6f, 1.6f, -1.6f, 1.6f}));
}

// The second block, of one element, has a mean of its own.
TEST(HandVectorsTest, OneBitHasAMeanABlock) {
  Floats elements(33, -2);
  elements[32] = 0.5f;
  const Message message("one_bit", {{"block", "32"}}, elements);
  Floats expected(33, -2);
  expected[32] = 0.5f;
  EXPECT_THAT(message.bytes(),
              ElementsAreArray(Parts({0, 0, 0, 0x40, 0, 0, 0, 0x3F}, {0xFF, 0xFF, 0xFF, 0xFF, 0})));
  EXPECT_THAT(message.decoded(), ElementsAreArray(expected));
}

// ceil(0.5 * 5) = 3: both of magnitude 3, and of the two of 0.5 the first.
TEST(HandVectorsTest, TopKSendsIndicesAndValues) {
  const Floats elements = {0.5f, -3, 0.25f, 3, -0.5f};
  const Bytes indices = {0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0};
  const Message message("top_k", {{"ratio", "0.5"}}, elements);
  EXPECT_THAT(message.bytes(), ElementsAreArray(Parts(
                                   indices, {0, 0, 0, 0x3F, 0, 0, 0x40, 0xC0, 0, 0, 0x40, 0x40})));
  EXPECT_THAT(message.decoded(), ElementsAreArray({0.5f, -3.0f, 0.0f, 3.0f, 0.0f}));
  const Message half("top_k", {{"ratio", "0.5"}}, elements, DType::kFloat16);
  EXPECT_THAT(half.bytes(), ElementsAreArray(Parts(indices, {0, 0x38, 0, 0xC2, 0, 0x42})));
}

TEST(HandVectorsTest, BlocksOfNextToNothingAreZeros) {
  for (const char* const name : {"block_uint8", "block_int4"}) {
    const Floats decoded = Message(name, {}, {0x1p-101f, -0x1p-120f, 0}).decoded();
    EXPECT_THAT(decoded, ElementsAreArray({0.0f, 0.0f, 0.0f})) << name;
  }
}

TEST(HandVectorsTest, ABlockThatIsNotFiniteIsNaN) {
  for (const char* const name : {"block_uint8", "block_int4", "one_bit"}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const float x : Message(name, {}, {1, bad, -2}).decoded()) {
        EXPECT_TRUE(std::isnan(x)) << name << ", " << bad;
      }
    }
  }
}

}  // namespace
}  // namespace pelton::codec
