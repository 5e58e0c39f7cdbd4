// Compiled once per instruction set (Highway's foreach_target); the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "algorithms/codec/block_kernels.cc"
#include "algorithms/codec/block_kernels.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "algorithms/codec/convert.h"
#include "algorithms/codec/specification.h"
#include "core/base/instruction_sets.h"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "algorithms/codec/bytes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using codec::Blocks;
using codec::BlockScale;
using codec::Levels;

// The largest magnitude; NaN if there is one: without their signs, floats are ordered as integers,
// and NaN comes last.
float LargestMagnitude(const float* elements, size_t count) {
  const FloatTag d;
  const IntTag i32;
  const size_t lanes = hn::Lanes(d);
  constexpr int32_t kMagnitude = 0x7FFFFFFF;
  const auto mask = hn::Set(i32, kMagnitude);
  auto largest0 = hn::Zero(i32);
  auto largest1 = hn::Zero(i32);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto x0 = hn::BitCast(i32, hn::LoadU(d, elements + i));
    const auto x1 = hn::BitCast(i32, hn::LoadU(d, elements + i + lanes));
    largest0 = hn::Max(largest0, hn::And(x0, mask));
    largest1 = hn::Max(largest1, hn::And(x1, mask));
  }
  int32_t largest = hn::GetLane(hn::MaxOfLanes(i32, hn::Max(largest0, largest1)));
  for (; i < count; ++i) {
    largest = HWY_MAX(largest, std::bit_cast<int32_t>(elements[i]) & kMagnitude);
  }
  return std::bit_cast<float>(largest);
}

void EncodeLevels(const float* elements, size_t count, float levels_per_unit, Levels levels,
                  uint8_t* bytes) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const auto inverse = hn::Set(d, levels_per_unit);
  const auto offset = hn::Set(IntTag(), kRounderBits - static_cast<int32_t>(levels.zero));
  const auto level = [&](const float* from) HWY_ATTR {
    return RoundedMinus(hn::Mul(hn::LoadU(d, from), inverse), offset);
  };
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const float* const from = elements + i;
    StoreAsBytes(level(from), level(from + lanes), level(from + 2 * lanes), level(from + 3 * lanes),
                 bytes + i);
  }
  if (i == count) return;
  float in[4 * hn::MaxLanes(d)] = {};
  uint8_t out[4 * hn::MaxLanes(d)];
  std::memcpy(in, elements + i, (count - i) * sizeof *in);
  for (size_t v = 0; v < 4 * lanes; v += 2 * lanes) {
    StoreAsBytes(level(in + v), level(in + v + lanes), out + v);
  }
  std::memcpy(bytes + i, out, count - i);
}

void DecodeLevels(const uint8_t* bytes, size_t count, float scale, Levels levels, float* elements) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const auto zero = hn::Set(d, levels.zero);
  const auto step = hn::Set(d, scale);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Mul(hn::Sub(LoadBytes(bytes + i), zero), step), d, elements + i);
  }
  for (; i < count; ++i) elements[i] = codec::DecodeLevel(bytes[i], scale, levels);
}

// Scales of all blocks, and a byte for each element. First all scales, so that one block's division
// does not hold up the next one's comparisons; the elements stay in the cache.
HWY_INLINE void EncodeLevelBlocks(const float* elements, Blocks blocks, Levels levels,
                                  float* scales, uint8_t* bytes) {
  float inverses[codec::kBlockCount / 32];
  size_t b = 0;
  for (size_t begin = 0; begin < blocks.count; begin += blocks.block, ++b) {
    const size_t length = HWY_MIN(blocks.block, blocks.count - begin);
    const BlockScale s = codec::BlockScaleOf(LargestMagnitude(elements + begin, length), levels);
    scales[b] = s.scale;
    inverses[b] = s.inverse;
  }
  b = 0;
  for (size_t begin = 0; begin < blocks.count; begin += blocks.block, ++b) {
    const size_t length = HWY_MIN(blocks.block, blocks.count - begin);
    if (inverses[b] == 0.0f) {
      std::memset(bytes + begin, static_cast<int>(levels.zero), length);
    } else {
      EncodeLevels(elements + begin, length, inverses[b], levels, bytes + begin);
    }
  }
}

HWY_INLINE void DecodeLevelBlocks(const float* scales, const uint8_t* bytes, Blocks blocks,
                                  Levels levels, float* elements) {
  for (size_t begin = 0; begin < blocks.count; begin += blocks.block) {
    const size_t length = HWY_MIN(blocks.block, blocks.count - begin);
    DecodeLevels(bytes + begin, length, *scales++, levels, elements + begin);
  }
}

void EncodeUInt8OnTarget(const float* elements, Blocks blocks, float* scales, uint8_t* payload) {
  EncodeLevelBlocks(elements, blocks, codec::kUInt8Levels, scales, payload);
}

void DecodeUInt8OnTarget(const float* scales, const uint8_t* payload, Blocks blocks,
                         float* elements) {
  DecodeLevelBlocks(scales, payload, blocks, codec::kUInt8Levels, elements);
}

// Plain loops over groups of constant length, which the compiler turns into vectors of this target.
constexpr size_t kGroup = 64;

// Two levels are a word of 16 bits on the way: the first one, which comes first in memory, is its
// low byte.
static_assert(std::endian::native == std::endian::little);

void EncodeInt4OnTarget(const float* elements, Blocks blocks, float* scales, uint8_t* payload) {
  HWY_ALIGN uint16_t pairs[codec::kBlockCount / 2];
  HWY_ALIGN uint8_t packed[codec::kBlockCount / 2];
  auto* const levels = reinterpret_cast<uint8_t*>(pairs);
  EncodeLevelBlocks(elements, blocks, codec::kInt4Levels, scales, levels);
  const size_t bytes = (blocks.count + 1) / 2;
  if (blocks.count % 2 != 0) levels[blocks.count] = 0;
  for (size_t begin = 0; begin < bytes; begin += kGroup) {
    for (size_t i = begin; i < begin + kGroup; ++i) {
      packed[i] = static_cast<uint8_t>(pairs[i] | pairs[i] >> 4);
    }
  }
  std::memcpy(payload, packed, bytes);
}

void DecodeInt4OnTarget(const float* scales, const uint8_t* payload, Blocks blocks,
                        float* elements) {
  HWY_ALIGN uint16_t pairs[codec::kBlockCount / 2];
  HWY_ALIGN uint8_t packed[codec::kBlockCount / 2];
  const size_t bytes = (blocks.count + 1) / 2;
  std::memcpy(packed, payload, bytes);
  for (size_t begin = 0; begin < bytes; begin += kGroup) {
    for (size_t i = begin; i < begin + kGroup; ++i) {
      pairs[i] = static_cast<uint16_t>((packed[i] | packed[i] << 4) & 0x0F0F);
    }
  }
  const auto* const levels = reinterpret_cast<const uint8_t*>(pairs);
  DecodeLevelBlocks(scales, levels, blocks, codec::kInt4Levels, elements);
}

// In the parts and the order of specification.h, with any width of vectors.
float SumOfMagnitudes(const float* elements, size_t count) {
  const FloatTag d;
  constexpr size_t kParts = codec::kSumParts;
  constexpr size_t kVectors = kParts / hn::MaxLanes(FloatTag());
  static_assert(kVectors * hn::MaxLanes(FloatTag()) == kParts);
  FloatVector sums[kVectors];
  for (FloatVector& sum : sums) sum = hn::Zero(d);
  const auto add = [&](const float* from) HWY_ATTR {
    for (size_t v = 0; v < kVectors; ++v) {
      sums[v] = hn::Add(sums[v], hn::Abs(hn::LoadU(d, from + v * hn::MaxLanes(d))));
    }
  };
  size_t i = 0;
  for (; i + kParts <= count; i += kParts) add(elements + i);
  if (i < count) {
    float rest[kParts] = {};
    std::memcpy(rest, elements + i, (count - i) * sizeof *rest);
    add(rest);
  }
  HWY_ALIGN float parts[kParts];
  for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, parts + v * hn::MaxLanes(d));
  for (size_t half = kParts / 2; half != 0; half /= 2) {
    for (size_t p = 0; p < half; ++p) parts[p] += parts[p + half];
  }
  return parts[0];
}

constexpr size_t kWord = 32;  // signs in a word

uint32_t SignsOf(const float* elements) {
  const FloatTag d;
  const IntTag i32;
  uint32_t word = 0;
  for (size_t i = 0; i < kWord; i += hn::MaxLanes(d)) {
    const auto bits = hn::BitCast(i32, hn::LoadU(d, elements + i));
    uint8_t mask[8] = {};
    hn::StoreMaskBits(i32, hn::Lt(bits, hn::Zero(i32)), mask);
    word |= (mask[0] | static_cast<uint32_t>(mask[1]) << 8) << i;
  }
  return word;
}

void EncodeOneBitOnTarget(const float* elements, Blocks blocks, float* scales, uint8_t* payload) {
  for (size_t begin = 0; begin < blocks.count; begin += blocks.block) {
    const size_t length = HWY_MIN(blocks.block, blocks.count - begin);
    const float sum = SumOfMagnitudes(elements + begin, length);
    *scales++ = codec::MeanMagnitude(sum, static_cast<float>(length));
  }
  size_t i = 0;
  for (; i + kWord <= blocks.count; i += kWord) {
    const uint32_t word = SignsOf(elements + i);
    std::memcpy(payload + i / 8, &word, sizeof word);
  }
  if (i == blocks.count) return;
  float rest[kWord] = {};
  std::memcpy(rest, elements + i, (blocks.count - i) * sizeof *rest);
  const uint32_t word = SignsOf(rest);
  std::memcpy(payload + i / 8, &word, (blocks.count - i + 7) / 8);
}

// `scale` with the signs of `word`: kWord elements.
void WriteSigned(uint32_t word, float scale, float* elements) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> u32;
  const size_t lanes = hn::Lanes(d);
  const auto sign = hn::Set(u32, 0x80000000u);
  const auto magnitude = hn::BitCast(u32, hn::Set(d, scale));
  const auto shifts = hn::Sub(hn::Set(u32, 31u), hn::Iota(u32, 0));
  for (size_t i = 0; i < kWord; i += lanes) {
    const auto signs = hn::And(hn::Shl(hn::Set(u32, word >> i), shifts), sign);
    hn::StoreU(hn::BitCast(d, hn::Xor(magnitude, signs)), d, elements + i);
  }
}

void DecodeOneBitOnTarget(const float* scales, const uint8_t* payload, Blocks blocks,
                          float* elements) {
  size_t i = 0;
  uint32_t word = 0;
  for (; i + kWord <= blocks.count; i += kWord) {
    std::memcpy(&word, payload + i / 8, sizeof word);
    WriteSigned(word, scales[i / blocks.block], elements + i);
  }
  if (i == blocks.count) return;
  float rest[kWord];
  word = 0;
  std::memcpy(&word, payload + i / 8, (blocks.count - i + 7) / 8);
  WriteSigned(word, scales[i / blocks.block], rest);
  std::memcpy(elements + i, rest, (blocks.count - i) * sizeof *rest);
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pelton {

HWY_EXPORT(EncodeUInt8OnTarget);
HWY_EXPORT(DecodeUInt8OnTarget);
HWY_EXPORT(EncodeInt4OnTarget);
HWY_EXPORT(DecodeInt4OnTarget);
HWY_EXPORT(EncodeOneBitOnTarget);
HWY_EXPORT(DecodeOneBitOnTarget);

namespace codec {

void EncodeUInt8Blocks(const float* elements, Blocks blocks, float* scales, uint8_t* payload) {
  HWY_DYNAMIC_DISPATCH(EncodeUInt8OnTarget)(elements, blocks, scales, payload);
}

void DecodeUInt8Blocks(const float* scales, const uint8_t* payload, Blocks blocks,
                       float* elements) {
  HWY_DYNAMIC_DISPATCH(DecodeUInt8OnTarget)(scales, payload, blocks, elements);
}

void EncodeInt4Blocks(const float* elements, Blocks blocks, float* scales, uint8_t* payload) {
  HWY_DYNAMIC_DISPATCH(EncodeInt4OnTarget)(elements, blocks, scales, payload);
}

void DecodeInt4Blocks(const float* scales, const uint8_t* payload, Blocks blocks, float* elements) {
  HWY_DYNAMIC_DISPATCH(DecodeInt4OnTarget)(scales, payload, blocks, elements);
}

void EncodeOneBitBlocks(const float* elements, Blocks blocks, float* scales, uint8_t* payload) {
  HWY_DYNAMIC_DISPATCH(EncodeOneBitOnTarget)(elements, blocks, scales, payload);
}

void DecodeOneBitBlocks(const float* scales, const uint8_t* payload, Blocks blocks,
                        float* elements) {
  HWY_DYNAMIC_DISPATCH(DecodeOneBitOnTarget)(scales, payload, blocks, elements);
}

}  // namespace codec
}  // namespace pelton
#endif  // HWY_ONCE
