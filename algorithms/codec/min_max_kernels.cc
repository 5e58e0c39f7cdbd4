// Compiled once per instruction set (Highway's foreach_target); the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "algorithms/codec/min_max_kernels.cc"
#include "algorithms/codec/min_max_kernels.h"

#include <cstring>

#include "core/base/instruction_sets.h"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "algorithms/codec/bytes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using codec::MinMax;
using codec::MinMaxDecoder;
using codec::MinMaxScale;

MinMax WidenedOnTarget(MinMax range, const float* elements, size_t count) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kChains = 4;  // as many as hide a comparison's latency
  FloatVector min[kChains];
  FloatVector max[kChains];
  for (size_t c = 0; c < kChains; ++c) {
    min[c] = hn::Set(d, range.min);
    max[c] = hn::Set(d, range.max);
  }
  // Whether a vector minimum keeps a NaN depends on the processor. A sum always does, and it leaves
  // the comparing units to the two that need them.
  FloatVector sum[kChains];
  for (FloatVector& part : sum) part = hn::Zero(d);
  size_t i = 0;
  for (; i + kChains * lanes <= count; i += kChains * lanes) {
    for (size_t c = 0; c < kChains; ++c) {
      const auto x = hn::LoadU(d, elements + i + c * lanes);
      min[c] = hn::Min(x, min[c]);
      max[c] = hn::Max(x, max[c]);
      sum[c] = hn::Add(sum[c], x);
    }
  }
  const auto total = hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]));
  if (!hn::AllFalse(d, hn::IsNaN(total))) {  // a NaN, or infinities of both signs
    for (size_t k = 0; k < count; ++k) range = codec::Widened(range, elements[k]);
    return range;
  }
  const auto least = hn::Min(hn::Min(min[0], min[1]), hn::Min(min[2], min[3]));
  const auto largest = hn::Max(hn::Max(max[0], max[1]), hn::Max(max[2], max[3]));
  if (!codec::IsNan(range.min)) {
    // Lane by lane: Highway's emulated MinOfLanes knows no infinity.
    HWY_ALIGN float mins[hn::MaxLanes(d)];
    HWY_ALIGN float maxs[hn::MaxLanes(d)];
    hn::Store(least, d, mins);
    hn::Store(largest, d, maxs);
    for (size_t lane = 0; lane < lanes; ++lane) {
      range.min = HWY_MIN(range.min, mins[lane]);
      range.max = HWY_MAX(range.max, maxs[lane]);
    }
  }
  for (; i < count; ++i) range = codec::Widened(range, elements[i]);
  return range;
}

// Where no level is beyond 2^22 in magnitude, integers hold level and difference exactly.
struct NarrowLevels {
  FloatVector scale;
  IntVector offset;
  explicit HWY_INLINE NarrowLevels(MinMaxScale s)
      : scale(hn::Set(FloatTag(), s.scale)),
        offset(hn::Set(IntTag(), kRounderBits + static_cast<int32_t>(s.lower))) {}
  HWY_INLINE IntVector operator()(FloatVector x) const {
    return RoundedMinus(hn::Mul(x, scale), offset);
  }
};

// Levels of any size, in float32 as specified; their differences are small.
struct WideLevels {
  FloatVector scale;
  FloatVector lower;
  explicit HWY_INLINE WideLevels(MinMaxScale s)
      : scale(hn::Set(FloatTag(), s.scale)), lower(hn::Set(FloatTag(), s.lower)) {}
  HWY_INLINE IntVector operator()(FloatVector x) const {
    const auto level = hn::Sub(hn::Round(hn::Mul(x, scale)), lower);
    return RoundedMinus(level, hn::Set(IntTag(), kRounderBits));
  }
};

// No element exceeds the maximum, so none of its levels the upper one: the specification's `min` is
// there without an instruction. Storing saturates.
template <class Levels>
HWY_INLINE void EncodeBy(const Levels& levels, const float* elements, size_t count,
                         uint8_t* bytes) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const float* const from = elements + i;
    const auto a = levels(hn::LoadU(d, from));
    const auto b = levels(hn::LoadU(d, from + lanes));
    const auto e = levels(hn::LoadU(d, from + 2 * lanes));
    const auto f = levels(hn::LoadU(d, from + 3 * lanes));
    StoreAsBytes(a, b, e, f, bytes + i);
  }
  HWY_ALIGN float in[2 * hn::MaxLanes(d)] = {};
  uint8_t out[2 * hn::MaxLanes(d)];
  for (; i < count; i += 2 * lanes) {  // at most twice
    const size_t rest = HWY_MIN(2 * lanes, count - i);
    std::memcpy(in, elements + i, rest * sizeof *in);
    StoreAsBytes(levels(hn::Load(d, in)), levels(hn::Load(d, in + lanes)), out);
    std::memcpy(bytes + i, out, rest);
  }
}

void EncodeMinMaxOnTarget(const float* elements, size_t count, MinMaxScale s, uint8_t* bytes) {
  constexpr float kNarrow = 1 << 21;
  if (!codec::IsUsable(s)) {
    if (count != 0) std::memset(bytes, 255, count);
  } else if (s.lower > -kNarrow && s.upper < kNarrow) {
    EncodeBy(NarrowLevels(s), elements, count, bytes);
  } else {
    EncodeBy(WideLevels(s), elements, count, bytes);
  }
}

// (byte + lower) / scale, by a division.
struct Divided {
  FloatVector lower;
  FloatVector scale;
  explicit HWY_INLINE Divided(MinMaxScale s)
      : lower(hn::Set(FloatTag(), s.lower)), scale(hn::Set(FloatTag(), s.scale)) {}
  HWY_INLINE FloatVector operator()(const uint8_t* bytes) const {
    return hn::Div(hn::Add(LoadBytes(bytes), lower), scale);
  }
};

// The same by a product, and one step of Newton's on what it leaves.
struct Multiplied {
  FloatVector lower;
  FloatVector scale;
  FloatVector inverse;
  explicit HWY_INLINE Multiplied(MinMaxScale s)
      : lower(hn::Set(FloatTag(), s.lower)),
        scale(hn::Set(FloatTag(), s.scale)),
        inverse(hn::Set(FloatTag(), 1.0f / s.scale)) {}
  HWY_INLINE FloatVector operator()(const uint8_t* bytes) const {
    const auto level = hn::Add(LoadBytes(bytes), lower);
    const auto quotient = hn::Mul(level, inverse);
    return hn::MulAdd(hn::NegMulAdd(quotient, scale, level), inverse, quotient);
  }
};

template <class Quotients>
HWY_INLINE void DecodeBy(const Quotients& quotients, const uint8_t* bytes, size_t count,
                         float* elements) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto v0 = quotients(bytes + i);
    const auto v1 = quotients(bytes + i + lanes);
    const auto v2 = quotients(bytes + i + 2 * lanes);
    const auto v3 = quotients(bytes + i + 3 * lanes);
    hn::StoreU(v0, d, elements + i);
    hn::StoreU(v1, d, elements + i + lanes);
    hn::StoreU(v2, d, elements + i + 2 * lanes);
    hn::StoreU(v3, d, elements + i + 3 * lanes);
  }
  if (i == count) return;
  uint8_t in[4 * hn::MaxLanes(d)] = {};
  float out[4 * hn::MaxLanes(d)];
  std::memcpy(in, bytes + i, count - i);
  for (size_t v = 0; v < 4 * lanes; v += lanes) hn::StoreU(quotients(in + v), d, out + v);
  std::memcpy(elements + i, out, (count - i) * sizeof *out);
}

MinMaxDecoder DecoderOnTarget(MinMaxScale s) {
  HWY_ALIGN uint8_t bytes[256];
  float divided[256];
  float multiplied[256];
  for (int i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(i);
  DecodeBy(Divided(s), bytes, 256, divided);
  DecodeBy(Multiplied(s), bytes, 256, multiplied);
  return {s, std::memcmp(divided, multiplied, sizeof divided) == 0};
}

void DecodeMinMaxOnTarget(const uint8_t* bytes, size_t count, MinMaxDecoder decoder,
                          float* elements) {
  const MinMaxScale s = decoder.s;
  if (decoder.multiplies) {
    DecodeBy(Multiplied(s), bytes, count, elements);
  } else {
    DecodeBy(Divided(s), bytes, count, elements);
  }
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pelton {

HWY_EXPORT(WidenedOnTarget);
HWY_EXPORT(EncodeMinMaxOnTarget);
HWY_EXPORT(DecoderOnTarget);
HWY_EXPORT(DecodeMinMaxOnTarget);

namespace codec {

MinMax WidenedByAll(MinMax range, const float* elements, size_t count) {
  return HWY_DYNAMIC_DISPATCH(WidenedOnTarget)(range, elements, count);
}

void EncodeMinMaxAll(const float* elements, size_t count, MinMaxScale s, uint8_t* bytes) {
  HWY_DYNAMIC_DISPATCH(EncodeMinMaxOnTarget)(elements, count, s, bytes);
}

MinMaxDecoder MinMaxDecoderOf(MinMaxScale s) { return HWY_DYNAMIC_DISPATCH(DecoderOnTarget)(s); }

void DecodeMinMaxAll(const uint8_t* bytes, size_t count, MinMaxDecoder decoder, float* elements) {
  HWY_DYNAMIC_DISPATCH(DecodeMinMaxOnTarget)(bytes, count, decoder, elements);
}

}  // namespace codec
}  // namespace pelton
#endif  // HWY_ONCE
