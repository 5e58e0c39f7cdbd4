// Vectors of small integers to and from bytes in memory. For units of Highway's foreach_target
// alone: included once per instruction set, after hwy/foreach_target.h.
#if defined(PELTON_ALGORITHMS_CODEC_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PELTON_ALGORITHMS_CODEC_BYTES_INL_H_
#undef PELTON_ALGORITHMS_CODEC_BYTES_INL_H_
#else
#define PELTON_ALGORITHMS_CODEC_BYTES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;
using FloatVector = hn::Vec<FloatTag>;
using IntVector = hn::Vec<IntTag>;

// Adding it to a float of magnitude below 2^22 rounds that to an integer, half to even, and leaves
// it in the low bits: one addition instead of a conversion that also looks after overflow.
inline constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23
inline constexpr int32_t kRounderBits = 0x4B400000;

// rint(v) - offset - kRounderBits, for |v| below 2^22.
HWY_INLINE IntVector RoundedMinus(FloatVector v, IntVector offset) {
  const FloatTag d;
  const IntTag i;
  return hn::Sub(hn::BitCast(i, hn::Add(v, hn::Set(d, kRounder))), offset);
}

// Two vectors, saturated to 0..255, in order.
HWY_INLINE void StoreAsBytes(IntVector a, IntVector b, uint8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  const int32_t lanes[] = {hn::GetLane(a), hn::GetLane(b)};
  for (int k = 0; k < 2; ++k) {
    to[k] = static_cast<uint8_t>(lanes[k] < 0 ? 0 : lanes[k] > 255 ? 255 : lanes[k]);
  }
#else
  const hn::Repartition<int16_t, IntTag> words;
  const hn::Rebind<uint8_t, decltype(words)> bytes;
  const auto packed = hn::DemoteTo(bytes, hn::ReorderDemote2To(words, a, b));
  if constexpr (hn::MaxLanes(IntTag()) == 4) {
    hn::StoreU(packed, bytes, to);
  } else {
    // The pairs were packed within blocks of 16 bytes: fours of a and of b alternate.
    const hn::Repartition<uint32_t, decltype(bytes)> fours;
    HWY_ALIGN uint32_t order[hn::MaxLanes(fours)];
    for (uint32_t k = 0; k < hn::Lanes(fours); ++k) {
      order[k] = k < hn::Lanes(fours) / 2 ? 2 * k : 2 * k + 1 - hn::Lanes(fours);
    }
    const auto indices = hn::SetTableIndices(fours, order);
    hn::StoreU(hn::BitCast(bytes, hn::TableLookupLanes(hn::BitCast(fours, packed), indices)), bytes,
               to);
  }
#endif
}

// Four vectors, saturated to 0..255, in order.
HWY_INLINE void StoreAsBytes(IntVector a, IntVector b, IntVector c, IntVector e, uint8_t* to) {
#if HWY_TARGET == HWY_AVX2
  // Half of the shuffles: Highway 1.0.3 has no packing of two vectors of words into one of bytes.
  const __m256i words0 = _mm256_packs_epi32(a.raw, b.raw);
  const __m256i words1 = _mm256_packs_epi32(c.raw, e.raw);
  const __m256i fours = _mm256_packus_epi16(words0, words1);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(fours, order));
#else
  StoreAsBytes(a, b, to);
  StoreAsBytes(c, e, to + 2 * hn::Lanes(IntTag()));
#endif
}

// As many bytes as a vector of floats has lanes, as floats.
HWY_INLINE FloatVector LoadBytes(const uint8_t* from) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(FloatTag(), static_cast<float>(*from));
#else
  const hn::Rebind<uint8_t, IntTag> bytes;
  return hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), hn::LoadU(bytes, from)));
#endif
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PELTON_ALGORITHMS_CODEC_BYTES_INL_H_
