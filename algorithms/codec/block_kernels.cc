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

// How levels lie in a payload.
struct Bytes {
  static constexpr size_t kPerByte = 1;
  static HWY_INLINE void Store(IntVector a, IntVector b, IntVector c, IntVector e, uint8_t* to) {
    StoreAsBytes(a, b, c, e, to);
  }
};
struct Nibbles {
  static constexpr size_t kPerByte = 2;
  static HWY_INLINE void Store(IntVector a, IntVector b, IntVector c, IntVector e, uint8_t* to) {
    StoreAsNibbles(a, b, c, e, to);
  }
};

template <class Packing>
HWY_INLINE void EncodeLevels(const float* elements, size_t count, float levels_per_unit,
                             Levels levels, uint8_t* payload) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const auto inverse = hn::Set(d, levels_per_unit);
  const auto offset = hn::Set(IntTag(), kRounderBits - static_cast<int32_t>(levels.zero));
  const auto store_levels = [&](const float* from, uint8_t* to) HWY_ATTR {
    const auto level = [&](const float* at) HWY_ATTR {
      return RoundedMinus(hn::Mul(hn::LoadU(d, at), inverse), offset);
    };
    Packing::Store(level(from), level(from + lanes), level(from + 2 * lanes),
                   level(from + 3 * lanes), to);
  };
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    store_levels(elements + i, payload + i / Packing::kPerByte);
  }
  if (i == count) return;
  const size_t rest = count - i;
  float in[4 * hn::MaxLanes(d)] = {};
  uint8_t out[4 * hn::MaxLanes(d)];
  std::memcpy(in, elements + i, rest * sizeof *in);
  store_levels(in, out);
  if (rest % Packing::kPerByte != 0) out[rest / 2] &= 0x0F;  // the other half has no element
  std::memcpy(payload + i / Packing::kPerByte, out,
              (rest + Packing::kPerByte - 1) / Packing::kPerByte);
}

// All levels are the one that means zero.
template <class Packing>
void EncodeZeros(size_t count, Levels levels, uint8_t* payload) {
  const auto zero = static_cast<uint8_t>(levels.zero);
  if constexpr (Packing::kPerByte == 1) {
    std::memset(payload, zero, count);
  } else {
    std::memset(payload, zero | zero << 4, count / 2);
    if (count % 2 != 0) payload[count / 2] = zero;
  }
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

// Scales of all blocks, and their levels. First all scales, so that one block's division
// does not hold up the next one's comparisons; the elements stay in the cache.
template <class Packing>
HWY_INLINE void EncodeLevelBlocks(const float* elements, Blocks blocks, Levels levels,
                                  float* scales, uint8_t* payload) {
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
    uint8_t* const to = payload + begin / Packing::kPerByte;
    if (inverses[b] == 0.0f) {
      EncodeZeros<Packing>(length, levels, to);
    } else {
      EncodeLevels<Packing>(elements + begin, length, inverses[b], levels, to);
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
  EncodeLevelBlocks<Bytes>(elements, blocks, codec::kUInt8Levels, scales, payload);
}

void DecodeUInt8OnTarget(const float* scales, const uint8_t* payload, Blocks blocks,
                         float* elements) {
  DecodeLevelBlocks(scales, payload, blocks, codec::kUInt8Levels, elements);
}

void EncodeInt4OnTarget(const float* elements, Blocks blocks, float* scales, uint8_t* payload) {
  EncodeLevelBlocks<Nibbles>(elements, blocks, codec::kInt4Levels, scales, payload);
}

// A plain loop over groups of constant length, which the compiler turns into vectors of this
// target.
constexpr size_t kGroup = 64;

// Two levels are a word of 16 bits on the way: the first one, which comes first in memory, is its
// low byte.
static_assert(std::endian::native == std::endian::little);

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

// Sums magnitudes in the parts and the order of specification.h, with any width of vectors.
struct PartialSums {
  static constexpr size_t kParts = codec::kSumParts;
  static constexpr size_t kVectors = kParts / hn::MaxLanes(FloatTag());
  static_assert(kVectors * hn::MaxLanes(FloatTag()) == kParts);
  static_assert(kWord % kParts == 0);
  FloatVector sums[kVectors];

  HWY_INLINE PartialSums() {
    for (FloatVector& sum : sums) sum = hn::Zero(FloatTag());
  }
  HWY_INLINE void AddWord(const float* elements) {
    const FloatTag d;
    for (size_t p = 0; p < kWord; p += kParts) {
      for (size_t v = 0; v < kVectors; ++v) {
        const float* const from = elements + p + v * hn::MaxLanes(d);
        sums[v] = hn::Add(sums[v], hn::Abs(hn::LoadU(d, from)));
      }
    }
  }
  HWY_INLINE float Total() const {
    const FloatTag d;
    HWY_ALIGN float parts[kParts];
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, parts + v * hn::MaxLanes(d));
    for (size_t half = kParts / 2; half != 0; half /= 2) {
      for (size_t p = 0; p < half; ++p) parts[p] += parts[p + half];
    }
    return parts[0];
  }
};

// Writes the signs and returns the mean. In one pass: the sums wait for each other, and the signs
// are taken meanwhile.
float EncodeOneBitBlock(const float* elements, size_t count, uint8_t* payload) {
  PartialSums sums;
  size_t i = 0;
  for (; i + kWord <= count; i += kWord) {
    sums.AddWord(elements + i);
    const uint32_t word = SignsOf(elements + i);
    std::memcpy(payload + i / 8, &word, sizeof word);
  }
  if (i < count) {
    float rest[kWord] = {};
    std::memcpy(rest, elements + i, (count - i) * sizeof *rest);
    sums.AddWord(rest);
    const uint32_t word = SignsOf(rest);
    std::memcpy(payload + i / 8, &word, (count - i + 7) / 8);
  }
  return codec::MeanMagnitude(sums.Total(), static_cast<float>(count));
}

void EncodeOneBitOnTarget(const float* elements, Blocks blocks, float* scales, uint8_t* payload) {
  for (size_t begin = 0; begin < blocks.count; begin += blocks.block) {
    const size_t length = HWY_MIN(blocks.block, blocks.count - begin);
    *scales++ = EncodeOneBitBlock(elements + begin, length, payload + begin / 8);
  }
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

void DecodeOneBitBlock(float scale, const uint8_t* payload, size_t count, float* elements) {
  size_t i = 0;
  uint32_t word = 0;
  for (; i + kWord <= count; i += kWord) {
    std::memcpy(&word, payload + i / 8, sizeof word);
    WriteSigned(word, scale, elements + i);
  }
  if (i == count) return;
  float rest[kWord];
  word = 0;
  std::memcpy(&word, payload + i / 8, (count - i + 7) / 8);
  WriteSigned(word, scale, rest);
  std::memcpy(elements + i, rest, (count - i) * sizeof *rest);
}

void DecodeOneBitOnTarget(const float* scales, const uint8_t* payload, Blocks blocks,
                          float* elements) {
  for (size_t begin = 0; begin < blocks.count; begin += blocks.block) {
    const size_t length = HWY_MIN(blocks.block, blocks.count - begin);
    DecodeOneBitBlock(*scales++, payload + begin / 8, length, elements + begin);
  }
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
