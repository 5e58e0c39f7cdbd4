// The loops of the codecs with a scale per block over the elements, with the instructions of this
// processor.
#ifndef PELTON_ALGORITHMS_CODEC_BLOCK_KERNELS_H_
#define PELTON_ALGORITHMS_CODEC_BLOCK_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "core/memory/dtype.h"

namespace pelton::codec {

// Elements that follow each other, and how many share a scale: a power of two from 32 to
// convert.h's kBlockCount. Threads: a value. Owns: nothing.
struct Blocks {
  size_t count;
  size_t block;
  DType dtype;  // float64, float32, float16 or bfloat16
};

// Elements [count] to a scale per block and their payload, and back, bitwise as specification.h has
// it. What of the last byte belongs to no element is zero. Elements need not be aligned; nothing
// overlaps. Requires: count at most kBlockCount.
using EncodeBlocks = void(const std::byte* elements, Blocks, float* scales, uint8_t* payload);
using DecodeBlocks = void(const float* scales, const uint8_t* payload, Blocks, std::byte* elements);

EncodeBlocks EncodeUInt8Blocks;  // a byte an element
DecodeBlocks DecodeUInt8Blocks;
EncodeBlocks EncodeInt4Blocks;  // half a byte: the first of two elements in the low bits
DecodeBlocks DecodeInt4Blocks;
EncodeBlocks EncodeOneBitBlocks;  // the sign's bit: the first of eight elements in the lowest
DecodeBlocks DecodeOneBitBlocks;

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_BLOCK_KERNELS_H_
