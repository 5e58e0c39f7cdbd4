// Looks for large magnitudes, with the instructions of this processor.
#ifndef PELTON_ALGORITHMS_CODEC_SELECT_KERNEL_H_
#define PELTON_ALGORITHMS_CODEC_SELECT_KERNEL_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace pelton::codec {

// Magnitudes as integers in the same order: infinity after every number, NaN after infinity.
inline uint32_t MagnitudeKey(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu; }

// Writes the indices of the elements whose key is at least `least`, ascending; returns how many.
// Shape: elements [count], indices [count]. Requires: count at most 2^31.
size_t IndicesAtLeast(const float* elements, size_t count, uint32_t least, uint32_t* indices);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_SELECT_KERNEL_H_
