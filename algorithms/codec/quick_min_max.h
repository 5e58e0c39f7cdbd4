// MinMaxUInt8's arithmetic in fewer steps, with the same bits as specification.h's, for ranges that
// are not far smaller than their ends: what the GPU's kernels run for almost every piece. A
// division takes a processor of a GPU some 25 steps, a conversion between byte and float eight.
//
// - Floats from 2^23 to 2^24 are the integers, so that adding 1.5 * 2^23 rounds to an integer, ties
//   to even, and the low byte of such a float's bits is that of the integer.
// - Division by a number that many elements share, of which the rounded reciprocal y is known:
//   q0 = a y; q1 = q0 + (a - b q0) y is within one unit in the last place of a / b; a - b q1 is
//   exact with one rounding (fused), so that q1 + (a - b q1) y rounds as a / b does. Source: P.
//   Markstein, Computation of elementary functions on the IBM RISC System/6000 processor, IBM
//   Journal of Research and Development 34 (1), 1990, theorem 8. Nothing on the way may be
//   denormal or infinite, which the bounds below ensure.
#ifndef PELTON_ALGORITHMS_CODEC_QUICK_MIN_MAX_H_
#define PELTON_ALGORITHMS_CODEC_QUICK_MIN_MAX_H_

#include <math.h>
#include <stdint.h>

#include "algorithms/codec/specification.h"

namespace pelton::codec {

inline constexpr float kIntegers = 0x1p23f;
inline constexpr uint32_t kBitsOfIntegers = 0x4B000000u;
inline constexpr float kRoundsToIntegers = 0x1.8p23f;

// a / b where `inverse` is 1 / b, rounded. Requires: |a|, |b| and |a / b| from 2^-100 to 2^100, or
// a = +0.
PELTON_HOST_DEVICE inline float QuickQuotient(float a, float b, float inverse) {
  const float near = a * inverse;
  const float nearer = fmaf(fmaf(-b, near, a), inverse, near);
  return fmaf(fmaf(-b, nearer, a), inverse, nearer);
}

// Threads: a value. Owns: nothing.
struct QuickScale {
  float scale;
  float inverse;       // of scale
  float from_byte;     // from 2^23 + byte to byte + lower
  float from_rounded;  // from 1.5 * 2^23 + level, taken away: to level - lower
};

// Whether an element's level and all on its way are integers that float32 has.
PELTON_HOST_DEVICE inline bool IsQuick(MinMaxScale s) {
  return s.scale >= 0x1p-60f && s.scale <= 0x1p60f && fabsf(s.upper) <= 0x1p21f;
}

// Requires: IsQuick(s).
PELTON_HOST_DEVICE inline QuickScale QuickScaleOf(MinMaxScale s) {
  return {s.scale, 1.0f / s.scale, s.lower - kIntegers, s.lower + kRoundsToIntegers};
}

// As DecodeMinMax. `byte_of_integers`: 2^23 + byte.
PELTON_HOST_DEVICE inline float QuickDecode(float byte_of_integers, QuickScale s) {
  return QuickQuotient(byte_of_integers + s.from_byte, s.scale, s.inverse);
}

// As EncodeMinMax of an element of the range; 2^23 + byte.
PELTON_HOST_DEVICE inline float QuickEncode(float x, QuickScale s) {
  const float level = (x * s.scale + kRoundsToIntegers) - s.from_rounded;
  return fminf(fmaxf(level, 0.0f), 255.0f) + kIntegers;
}

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_QUICK_MIN_MAX_H_
