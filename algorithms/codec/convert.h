// Tensors of the floating point types from one to another.
#ifndef PELTON_ALGORITHMS_CODEC_CONVERT_H_
#define PELTON_ALGORITHMS_CODEC_CONVERT_H_

#include <cstddef>
#include <cstdint>

#include "core/memory/dtype.h"

namespace pelton::codec {

// What codecs work on at a time: 16 KiB of float32, half of a small first-level cache.
inline constexpr size_t kBlockCount = 4096;

// float64, float32, float16 and bfloat16.
bool IsConvertible(DType dtype);

// Threads: a value. Owns: nothing.
struct Conversion {
  DType from;
  DType to;
};

// Each element as float32, then of the other type. Rounds to nearest, ties to even; what is too
// large becomes infinite, NaN stays NaN.
// Shape: [count]. Nothing needs to be aligned; nothing may overlap. Requires: IsConvertible of
// both.
void Convert(const std::byte* source, size_t count, Conversion types, std::byte* target);
// The same from or to float32 itself.
void FloatsFrom(const std::byte* source, size_t count, DType dtype, float* floats);
void FloatsTo(const float* floats, size_t count, DType dtype, std::byte* target);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_CONVERT_H_
