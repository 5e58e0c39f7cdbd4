// MinMaxUInt8's loops over float32, with the instructions of this processor.
#ifndef PELTON_ALGORITHMS_CODEC_MIN_MAX_KERNELS_H_
#define PELTON_ALGORITHMS_CODEC_MIN_MAX_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "algorithms/codec/specification.h"

namespace pelton::codec {

// `range` widened by every element, bitwise as specification.h does it, but for the sign of a zero
// and the payload of a NaN. Shape: [count].
MinMax WidenedByAll(MinMax range, const float* elements, size_t count);

// EncodeMinMax of every element, which must lie within the range that `s` was made of.
// Shape: [count] each. Nothing overlaps.
void EncodeMinMaxAll(const float* elements, size_t count, MinMaxScale s, uint8_t* bytes);

// How the bytes of a chunk are decoded. Threads: a value. Owns: nothing.
struct MinMaxDecoder {
  MinMaxScale s;
  // Whether multiplying by 1 / s.scale, corrected by a fused multiply-add, gives the quotients of
  // all 256 bytes to the last bit: several times the rate of dividing.
  bool multiplies;
};
MinMaxDecoder MinMaxDecoderOf(MinMaxScale s);

// DecodeMinMax of every byte. Shape: [count] each. Nothing overlaps.
void DecodeMinMaxAll(const uint8_t* bytes, size_t count, MinMaxDecoder decoder, float* elements);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_MIN_MAX_KERNELS_H_
