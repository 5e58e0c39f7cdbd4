// Compiled once per instruction set (Highway's foreach_target); the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "algorithms/codec/level_kernels.cc"
#include <bit>
#include <cmath>
#include <cstring>

#include "algorithms/codec/block_kernels.h"
#include "algorithms/codec/convert.h"
#include "algorithms/codec/specification.h"
#include "core/base/instruction_sets.h"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "algorithms/codec/bytes-inl.h"
#include "algorithms/codec/elements-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using codec::Blocks;
using codec::Levels;

// BlockScaleOf as many magnitudes as a vector of floats has.
HWY_INLINE void StoreScales(FloatVector magnitudes, Levels levels, float* scales, float* inverses) {
  const FloatTag d;
  const auto count = hn::Set(d, levels.count);
  const auto is_finite = hn::Le(magnitudes, hn::Set(d, codec::kLargestFloat));
  const auto is_large = hn::Ge(magnitudes, hn::Set(d, codec::kSmallestMagnitude));
  const auto has_levels = hn::And(is_finite, is_large);
  hn::StoreU(hn::IfThenElseZero(has_levels, hn::Div(count, magnitudes)), d, inverses);
  const auto scale = hn::IfThenElseZero(has_levels, hn::Div(magnitudes, count));
  hn::StoreU(hn::IfThenElse(is_finite, scale, hn::Set(d, NAN)), d, scales);
}

// How levels lie in a payload.
struct Bytes {
  static constexpr Levels kLevels = codec::kUInt8Levels;
  static constexpr size_t kPerByte = 1;
  template <class Format>
  static HWY_INLINE void Store(const Quad& levels, uint8_t* to) {
    StoreAsBytes<Format>(levels, to);
  }
};
struct Nibbles {
  static constexpr Levels kLevels = codec::kInt4Levels;
  static constexpr size_t kPerByte = 2;
  template <class Format>
  static HWY_INLINE void Store(const Quad& levels, uint8_t* to) {
    StoreAsNibbles<Format>(levels, to);
  }
};

template <class Packing, class Format>
HWY_INLINE void EncodeLevels(const typename Format::Element* elements, size_t count,
                             float levels_per_unit, uint8_t* payload) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const auto inverse = hn::Set(d, levels_per_unit);
  const auto store_levels = [&](const typename Format::Element* from, uint8_t* to) HWY_ATTR {
    const Pair x = LoadPair<Format>(from);
    const Pair y = LoadPair<Format>(from + 2 * lanes);
    const auto level = [&](FloatVector v)
                           HWY_ATTR { return Rounded(hn::Mul(v, inverse), Packing::kLevels.zero); };
    Packing::template Store<Format>({level(x.a), level(x.b), level(y.a), level(y.b), kRounderBits},
                                    to);
  };
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    if constexpr (Bits<Format>::kNarrow) {
      // Arithmetic bounds this pass, memory the first one over the elements that come next.
      for (size_t k = 0; k < 4 * lanes; k += 32) {
        hwy::Prefetch(elements + codec::kBlockCount + i + k);
      }
    }
    store_levels(elements + i, payload + i / Packing::kPerByte);
  }
  if (i == count) return;
  const size_t rest = count - i;
  typename Format::Element in[4 * hn::MaxLanes(d)] = {};
  uint8_t out[4 * hn::MaxLanes(d)];
  std::memcpy(in, elements + i, rest * sizeof *in);
  store_levels(in, out);
  if (rest % Packing::kPerByte != 0) out[rest / 2] &= 0x0F;  // the other half has no element
  std::memcpy(payload + i / Packing::kPerByte, out,
              (rest + Packing::kPerByte - 1) / Packing::kPerByte);
}

// All levels are the one that means zero.
template <class Packing>
void EncodeZeros(size_t count, uint8_t* payload) {
  constexpr auto zero = static_cast<uint8_t>(Packing::kLevels.zero);
  if constexpr (Packing::kPerByte == 1) {
    std::memset(payload, zero, count);
  } else {
    std::memset(payload, zero | zero << 4, count / 2);
    if (count % 2 != 0) payload[count / 2] = zero;
  }
}

template <class Format, class Value>
HWY_INLINE void DecodeLevels(const uint8_t* bytes, size_t count, Value value,
                             typename Format::Element* elements) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const auto decode = [&](const uint8_t* from, typename Format::Element* to) HWY_ATTR {
    const auto v0 = value(LoadBytes(from));
    const auto v1 = value(LoadBytes(from + lanes));
    StorePair<Format, Nan::kOfArithmetic>(v0, v1, to);
  };
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) decode(bytes + i, elements + i);
  if (i == count) return;
  uint8_t in[2 * hn::MaxLanes(d)] = {};
  typename Format::Element out[2 * hn::MaxLanes(d)];
  std::memcpy(in, bytes + i, count - i);
  decode(in, out);
  std::memcpy(elements + i, out, (count - i) * sizeof *out);
}

// Scales of all blocks, and then their levels: one block's division does not hold up the next one's
// comparisons, and the elements stay in the cache.
template <class Packing, class Format>
HWY_FLATTEN void EncodeLevelBlocks(const typename Format::Element* elements, Blocks blocks,
                                   float* scales, uint8_t* payload) {
  constexpr size_t kMostBlocks = codec::kBlockCount / 32;
  typename Bits<Format>::Lane largest[kMostBlocks] = {};
  float all_scales[kMostBlocks];
  float inverses[kMostBlocks];
  const size_t block_count = (blocks.count + blocks.block - 1) / blocks.block;
  const auto of_block = [&](size_t b) HWY_ATTR {
    return HWY_MIN(blocks.block, blocks.count - b * blocks.block);
  };
  for (size_t b = 0; b < block_count; ++b) {
    largest[b] = LargestMagnitude<Format>(elements + b * blocks.block, of_block(b));
  }
  for (size_t b = 0; b < block_count; b += hn::Lanes(FloatTag())) {
    StoreScales(Bits<Format>::LoadFloats(largest + b), Packing::kLevels, all_scales + b,
                inverses + b);
  }
  std::memcpy(scales, all_scales, block_count * sizeof *scales);
  for (size_t b = 0; b < block_count; ++b) {
    uint8_t* const to = payload + b * blocks.block / Packing::kPerByte;
    if (inverses[b] == 0.0f) {
      EncodeZeros<Packing>(of_block(b), to);
    } else {
      EncodeLevels<Packing, Format>(elements + b * blocks.block, of_block(b), inverses[b], to);
    }
  }
}

// (byte - zero) * scale, where `zero` times the scale is exact and the scale positive: rounded
// once.
constexpr bool IsFused(float scale) {
  return HWY_NATIVE_FMA && scale > 0x1p-100f && scale < 0x1p100f;
}

HWY_FLATTEN void DecodeLevelBlocks(const float* scales, const uint8_t* bytes, Blocks blocks,
                                   Levels levels, std::byte* elements) {
  const FloatTag d;
  WithFormat(blocks.dtype, [&](auto format) HWY_ATTR {
    using Format = decltype(format);
    auto* const to = ElementsAt<Format>(elements);
    for (size_t begin = 0; begin < blocks.count; begin += blocks.block) {
      const size_t length = HWY_MIN(blocks.block, blocks.count - begin);
      // A payload of its own would not outlive bfloat16's rounding.
      const float scale = codec::IsNan(*scales) ? NAN : *scales;
      ++scales;
      const auto step = hn::Set(d, scale);
      if (IsFused(scale)) {
        const auto least = hn::Set(d, -levels.zero * scale);
        const auto value = [=](FloatVector level)
                               HWY_ATTR { return hn::MulAdd(level, step, least); };
        DecodeLevels<Format>(bytes + begin, length, value, to + begin);
      } else {
        const auto zero = hn::Set(d, levels.zero);
        const auto value = [=](FloatVector level)
                               HWY_ATTR { return hn::Mul(hn::Sub(level, zero), step); };
        DecodeLevels<Format>(bytes + begin, length, value, to + begin);
      }
    }
  });
}

void EncodeUInt8OnTarget(const std::byte* elements, Blocks blocks, float* scales,
                         uint8_t* payload) {
  WithFormat(blocks.dtype, [&](auto format) HWY_ATTR {
    using Format = decltype(format);
    EncodeLevelBlocks<Bytes, Format>(ElementsAt<Format>(elements), blocks, scales, payload);
  });
}

void DecodeUInt8OnTarget(const float* scales, const uint8_t* payload, Blocks blocks,
                         std::byte* elements) {
  DecodeLevelBlocks(scales, payload, blocks, codec::kUInt8Levels, elements);
}

void EncodeInt4OnTarget(const std::byte* elements, Blocks blocks, float* scales, uint8_t* payload) {
  WithFormat(blocks.dtype, [&](auto format) HWY_ATTR {
    using Format = decltype(format);
    EncodeLevelBlocks<Nibbles, Format>(ElementsAt<Format>(elements), blocks, scales, payload);
  });
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// A block of a 16-bit type has sixteen different elements, and one instruction looks up 32 of them.
template <class Format>
HWY_FLATTEN void LookUpInt4Blocks(const float* scales, const uint8_t* payload, Blocks blocks,
                                  uint16_t* elements) {
  const FloatTag d;
  constexpr size_t kAtOnce = 32;
  const auto levels = hn::Sub(hn::Iota(d, 0), hn::Set(d, codec::kInt4Levels.zero));
  for (size_t begin = 0; begin < blocks.count; begin += blocks.block) {
    HWY_ALIGN uint16_t sixteen[hn::MaxLanes(d)];
    Format::Store(d, hn::Mul(levels, hn::Set(d, *scales++)), sixteen);
    const auto* const loaded = reinterpret_cast<const __m256i*>(sixteen);
    const __m512i table = _mm512_broadcast_i64x4(_mm256_load_si256(loaded));
    const auto decode = [&](const uint8_t* from, uint16_t* to) HWY_ATTR {
      const auto* const packed = reinterpret_cast<const __m128i*>(from);
      const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(packed));
      // Five bits of a word count, and the table holds the sixteen twice.
      const __m512i indices = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
      _mm512_storeu_si512(to, _mm512_permutexvar_epi16(indices, table));
    };
    const size_t end = HWY_MIN(begin + blocks.block, blocks.count);
    size_t i = begin;
    for (; i + kAtOnce <= end; i += kAtOnce) decode(payload + i / 2, elements + i);
    if (i == end) continue;
    uint8_t in[kAtOnce / 2] = {};
    uint16_t out[kAtOnce];
    std::memcpy(in, payload + i / 2, (end - i + 1) / 2);
    decode(in, out);
    std::memcpy(elements + i, out, (end - i) * sizeof *out);
  }
}
#endif

// A plain loop over groups of constant length, which the compiler turns into vectors of this
// target.
constexpr size_t kGroup = 64;

// Two levels are a word of 16 bits on the way: the first one, which comes first in memory, is its
// low byte.
static_assert(std::endian::native == std::endian::little);

void DecodeInt4OnTarget(const float* scales, const uint8_t* payload, Blocks blocks,
                        std::byte* elements) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  auto* const to = reinterpret_cast<uint16_t*>(elements);
  if (blocks.dtype == DType::kFloat16) {
    return LookUpInt4Blocks<Float16>(scales, payload, blocks, to);
  }
  if (blocks.dtype == DType::kBFloat16) {
    return LookUpInt4Blocks<BFloat16>(scales, payload, blocks, to);
  }
#endif
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

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pelton {

HWY_EXPORT(EncodeUInt8OnTarget);
HWY_EXPORT(DecodeUInt8OnTarget);
HWY_EXPORT(EncodeInt4OnTarget);
HWY_EXPORT(DecodeInt4OnTarget);

namespace codec {

void EncodeUInt8Blocks(const std::byte* elements, Blocks blocks, float* scales, uint8_t* payload) {
  HWY_DYNAMIC_DISPATCH(EncodeUInt8OnTarget)(elements, blocks, scales, payload);
}

void DecodeUInt8Blocks(const float* scales, const uint8_t* payload, Blocks blocks,
                       std::byte* elements) {
  HWY_DYNAMIC_DISPATCH(DecodeUInt8OnTarget)(scales, payload, blocks, elements);
}

void EncodeInt4Blocks(const std::byte* elements, Blocks blocks, float* scales, uint8_t* payload) {
  HWY_DYNAMIC_DISPATCH(EncodeInt4OnTarget)(elements, blocks, scales, payload);
}

void DecodeInt4Blocks(const float* scales, const uint8_t* payload, Blocks blocks,
                      std::byte* elements) {
  HWY_DYNAMIC_DISPATCH(DecodeInt4OnTarget)(scales, payload, blocks, elements);
}

}  // namespace codec
}  // namespace pelton
#endif  // HWY_ONCE
