// Looks for large magnitudes, with the instructions of this processor.
#ifndef PELTON_ALGORITHMS_CODEC_SELECT_KERNEL_H_
#define PELTON_ALGORITHMS_CODEC_SELECT_KERNEL_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/memory/dtype.h"

namespace pelton::codec {

// Magnitudes as integers in the same order: infinity after every number, NaN after infinity.
inline uint32_t MagnitudeKey(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu; }

// What the kernel may write behind the last index.
inline constexpr size_t kIndicesSlack = 3;

// Writes the indices of the elements whose key is at least `least`, ascending; returns how many.
// Of float16, every NaN is among them whatever `least` is: reading one as float32 may change it.
// Shape: elements [count] of float32, float16 or bfloat16; indices [count + kIndicesSlack].
// Requires: count at most 2^31.
size_t IndicesAtLeast(const std::byte* elements, size_t count, DType dtype, uint32_t least,
                      uint32_t* indices);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_SELECT_KERNEL_H_
