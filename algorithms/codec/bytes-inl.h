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

#if HWY_TARGET == HWY_AVX2
// Four vectors, saturated to 0..255, in the order of InOrder. Half of the shuffles: Highway 1.0.3
// has no packing of two vectors of words into one of bytes.
HWY_INLINE __m256i PackedFours(IntVector a, IntVector b, IntVector c, IntVector e) {
  return _mm256_packus_epi16(_mm256_packs_epi32(a.raw, b.raw), _mm256_packs_epi32(c.raw, e.raw));
}
HWY_INLINE __m256i InOrder(__m256i fours) {
  return _mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
HWY_INLINE __m512i PackedFours(IntVector a, IntVector b, IntVector c, IntVector e) {
  return _mm512_packus_epi16(_mm512_packs_epi32(a.raw, b.raw), _mm512_packs_epi32(c.raw, e.raw));
}
HWY_INLINE __m512i InOrder(__m512i fours) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, fours);
}
#endif

// Four vectors, saturated to 0..255, in order.
HWY_INLINE void StoreAsBytes(IntVector a, IntVector b, IntVector c, IntVector e, uint8_t* to) {
#if HWY_TARGET == HWY_AVX2
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), InOrder(PackedFours(a, b, c, e)));
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  _mm512_storeu_si512(to, InOrder(PackedFours(a, b, c, e)));
#else
  StoreAsBytes(a, b, to);
  StoreAsBytes(c, e, to + 2 * hn::Lanes(IntTag()));
#endif
}

// Four vectors of 0..15, in order, two to a byte: the first in the low bits.
HWY_INLINE void StoreAsNibbles(IntVector a, IntVector b, IntVector c, IntVector e, uint8_t* to) {
#if HWY_TARGET == HWY_AVX2
  // A product of bytes adds up neighbours: the low one, and 16 times the high one.
  const __m256i weights = _mm256_set1_epi16(0x1001);
  const __m256i pairs = InOrder(_mm256_maddubs_epi16(PackedFours(a, b, c, e), weights));
  const __m128i packed =
      _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const __m512i weights = _mm512_set1_epi16(0x1001);
  const __m512i pairs = InOrder(_mm512_maddubs_epi16(PackedFours(a, b, c, e), weights));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi16_epi8(pairs));
#else
  uint8_t levels[4 * hn::MaxLanes(IntTag())];
  StoreAsBytes(a, b, c, e, levels);
  for (size_t i = 0; i < 2 * hn::Lanes(IntTag()); ++i) {
    to[i] = static_cast<uint8_t>(levels[2 * i] | levels[2 * i + 1] << 4);
  }
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
