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

#include "algorithms/codec/elements-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using IntTag = hn::RebindToSigned<FloatTag>;
using IntVector = hn::Vec<IntTag>;

// Adding it to a float of magnitude below 2^22 rounds that to an integer, half to even, and leaves
// it in the low bits: one addition instead of a conversion that also looks after overflow.
inline constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23
inline constexpr int32_t kRounderBits = 0x4B400000;

// Bits whose low ones are rint(v) + `more` + kRounderBits, for |v| below 2^22 and small even
// `more`.
HWY_INLINE IntVector Rounded(FloatVector v, float more = 0) {
  return hn::BitCast(IntTag(), hn::Add(v, hn::Set(FloatTag(), kRounder + more)));
}

// Four vectors of integers from what two LoadPair<Format> gave; what is stored is less by `offset`.
struct Quad {
  IntVector a;
  IntVector b;
  IntVector c;
  IntVector e;
  int32_t offset;
};

#if HWY_TARGET == HWY_SCALAR

// Saturated to 0..255, in order.
template <class Format>
HWY_INLINE void StoreAsBytes(const Quad& q, uint8_t* to) {
  for (const IntVector v : {q.a, q.b, q.c, q.e}) {
    const int32_t lane = hn::GetLane(v) - q.offset;
    *to++ = static_cast<uint8_t>(lane < 0 ? 0 : lane > 255 ? 255 : lane);
  }
}

#else

using WordTag = hn::Repartition<int16_t, IntTag>;
using WordVector = hn::Vec<WordTag>;

// Two vectors of a pair in one, in the order in which StoreAsBytes wants them.
template <class Format>
HWY_INLINE WordVector WordsOf(IntVector a, IntVector b, int32_t offset) {
  const WordTag words;
  if constexpr (kSplits<Format>) {
    const auto both = hn::OddEven(hn::BitCast(words, hn::ShiftLeft<16>(b)), hn::BitCast(words, a));
    return hn::Sub(both, hn::Set(words, static_cast<int16_t>(offset)));
  } else {
    const auto less = hn::Set(IntTag(), offset);
    return hn::ReorderDemote2To(words, hn::Sub(a, less), hn::Sub(b, less));
  }
}

#if HWY_TARGET == HWY_AVX2
// Saturated to 0..255. Processors pack within blocks of 16 bytes, and Highway 1.0.3 does not pack
// two vectors of words into one of bytes.
template <class Format>
HWY_INLINE __m256i PackedBytes(const Quad& q) {
  return _mm256_packus_epi16(WordsOf<Format>(q.a, q.b, q.offset).raw,
                             WordsOf<Format>(q.c, q.e, q.offset).raw);
}
// What was packed so, in order.
template <class Format>
HWY_INLINE __m256i InOrder(__m256i packed) {
  if constexpr (kSplits<Format>) return _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
template <class Format>
HWY_INLINE __m512i PackedBytes(const Quad& q) {
  return _mm512_packus_epi16(WordsOf<Format>(q.a, q.b, q.offset).raw,
                             WordsOf<Format>(q.c, q.e, q.offset).raw);
}
template <class Format>
HWY_INLINE __m512i InOrder(__m512i packed) {
  if constexpr (kSplits<Format>) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed);
  }
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, packed);
}
#endif

// Saturated to 0..255, in order.
template <class Format>
HWY_INLINE void StoreAsBytes(const Quad& q, uint8_t* to) {
#if HWY_TARGET == HWY_AVX2
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), InOrder<Format>(PackedBytes<Format>(q)));
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  _mm512_storeu_si512(to, InOrder<Format>(PackedBytes<Format>(q)));
#else
  static_assert(hn::MaxLanes(IntTag()) == 4, "packs within blocks of 16 bytes");
  const hn::Rebind<uint8_t, WordTag> bytes;
  hn::StoreU(hn::DemoteTo(bytes, WordsOf<Format>(q.a, q.b, q.offset)), bytes, to);
  hn::StoreU(hn::DemoteTo(bytes, WordsOf<Format>(q.c, q.e, q.offset)), bytes,
             to + hn::MaxLanes(bytes));
#endif
}

#endif  // HWY_TARGET == HWY_SCALAR

// Each of 0..15, in order, two to a byte: the first in the low bits.
template <class Format>
HWY_INLINE void StoreAsNibbles(const Quad& q, uint8_t* to) {
#if HWY_TARGET == HWY_AVX2
  // A product of bytes adds up neighbours: the low one, and 16 times the high one.
  const __m256i weights = _mm256_set1_epi16(0x1001);
  const __m256i pairs = InOrder<Format>(_mm256_maddubs_epi16(PackedBytes<Format>(q), weights));
  const __m128i packed =
      _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const __m512i weights = _mm512_set1_epi16(0x1001);
  const __m512i pairs = InOrder<Format>(_mm512_maddubs_epi16(PackedBytes<Format>(q), weights));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi16_epi8(pairs));
#else
  uint8_t levels[4 * hn::MaxLanes(IntTag())];
  StoreAsBytes<Format>(q, levels);
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
