// MinMaxUInt8's loops over the elements, with the instructions of this processor. They take
// float64, float32, float16 and bfloat16; nothing needs to be aligned, nothing overlaps.
#ifndef PELTON_ALGORITHMS_CODEC_MIN_MAX_KERNELS_H_
#define PELTON_ALGORITHMS_CODEC_MIN_MAX_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "algorithms/codec/specification.h"
#include "core/memory/dtype.h"

namespace pelton::codec {

// The range of all elements, bitwise as specification.h widens it, but for the sign of a zero and
// the payload of a NaN. Shape: [count], at least one.
MinMax MinMaxOfAll(const std::byte* elements, uint64_t count, DType dtype);

// EncodeMinMax of every element, which must lie within the range that `s` was made of.
// Shape: [count] each.
void EncodeMinMaxAll(const std::byte* elements, size_t count, DType dtype, MinMaxScale s,
                     uint8_t* bytes);

// DecodeMinMax of every byte. Shape: [count] each.
void DecodeMinMaxAll(const uint8_t* bytes, uint64_t count, MinMaxScale s, DType dtype,
                     std::byte* elements);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_MIN_MAX_KERNELS_H_
