// The arithmetic of each codec, per element: the one text that the scalar reference and the CUDA
// kernels compile, and that the SIMD kernels equal bit by bit. All of it in float32, each operation
// rounded once: compile with -ffp-contract=off (nvcc: -fmad=false).
#ifndef PELTON_ALGORITHMS_CODEC_SPECIFICATION_H_
#define PELTON_ALGORITHMS_CODEC_SPECIFICATION_H_

#include <math.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define PELTON_HOST_DEVICE __host__ __device__
#else
#define PELTON_HOST_DEVICE
#endif

namespace pelton::codec {

inline constexpr float kLargestFloat = 3.40282346638528859812e+38f;

// False for NaN and infinities.
PELTON_HOST_DEVICE inline bool IsFinite(float x) { return fabsf(x) <= kLargestFloat; }

PELTON_HOST_DEVICE inline bool IsNan(float x) { return x != x; }

// ---- MinMaxUInt8. Source: Bagua, bagua-core's bagua_kernels.cu: the same formulas.

struct MinMax {
  float min;
  float max;
};

// `range` with `x` in it: once NaN, always NaN.
PELTON_HOST_DEVICE inline MinMax Widened(MinMax range, float x) {
  if (!(x >= range.min)) range.min = IsNan(range.min) ? range.min : x;
  if (!(x <= range.max)) range.max = IsNan(range.max) ? range.max : x;
  return range;
}

struct MinMaxScale {
  float scale;
  float upper;
  float lower;
};

PELTON_HOST_DEVICE inline MinMaxScale MinMaxScaleOf(MinMax range) {
  MinMaxScale s;
  s.scale = 255.0f / (range.max - range.min + 1e-7f);
  s.upper = rintf(range.max * s.scale);
  s.lower = s.upper - 255.0f;
  return s;
}

// False where an element or the range is beyond float32: such a chunk decodes to no finite number.
PELTON_HOST_DEVICE inline bool IsUsable(MinMaxScale s) { return s.scale > 0 && IsFinite(s.lower); }

PELTON_HOST_DEVICE inline uint8_t EncodeMinMax(float x, MinMaxScale s) {
  if (!IsUsable(s)) return 255;
  // A tie can give -1, and a range far smaller than its ends 256 (docs/codecs.md).
  const float level = fminf(rintf(x * s.scale), s.upper) - s.lower;
  return static_cast<uint8_t>(fminf(fmaxf(level, 0.0f), 255.0f));
}

PELTON_HOST_DEVICE inline float DecodeMinMax(uint8_t byte, MinMaxScale s) {
  return (static_cast<float>(byte) + s.lower) / s.scale;
}

// ---- Blocks of levels around zero: block_uint8 and block_int4.

// How many levels there are on each side of zero, and the byte that means zero.
struct Levels {
  float count;
  float zero;
};
inline constexpr Levels kUInt8Levels = {127, 128};
inline constexpr Levels kInt4Levels = {7, 8};

// Blocks whose largest magnitude is smaller decode to zeros: no reciprocal overflows, no scale is
// denormal.
inline constexpr float kSmallestMagnitude = 0x1p-100f;

struct BlockScale {
  float inverse;  // levels per unit; 0 where no element is to be looked at
  float scale;    // units per level: what is sent
};

// `magnitude`: the largest of the block, NaN if there is one.
PELTON_HOST_DEVICE inline BlockScale BlockScaleOf(float magnitude, Levels levels) {
  if (!IsFinite(magnitude)) return {0.0f, NAN};
  if (magnitude < kSmallestMagnitude) return {0.0f, 0.0f};
  return {levels.count / magnitude, magnitude / levels.count};
}

PELTON_HOST_DEVICE inline uint8_t EncodeLevel(float x, BlockScale s, Levels levels) {
  if (s.inverse == 0.0f) return static_cast<uint8_t>(levels.zero);
  return static_cast<uint8_t>(rintf(x * s.inverse) + levels.zero);
}

PELTON_HOST_DEVICE inline float DecodeLevel(uint8_t byte, float scale, Levels levels) {
  return (static_cast<float>(byte) - levels.zero) * scale;
}

// ---- one_bit.

// A block's magnitudes are summed in so many parts, element i in part i % kSumParts, which are then
// added in halves (part i += part i + 8, then 4, 2, 1): an order that every vector width can keep.
inline constexpr int kSumParts = 16;

// What is sent for a block of `count` elements whose magnitudes add up to `sum`.
PELTON_HOST_DEVICE inline float MeanMagnitude(float sum, float count) {
  const float mean = sum / count;
  return IsFinite(mean) ? mean : NAN;
}

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_SPECIFICATION_H_
