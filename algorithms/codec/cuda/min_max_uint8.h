// MinMaxUInt8 on a GPU: the same bytes as min_max_uint8.cc makes.
#ifndef PELTON_ALGORITHMS_CODEC_CUDA_MIN_MAX_UINT8_H_
#define PELTON_ALGORITHMS_CODEC_CUDA_MIN_MAX_UINT8_H_

#include <cstddef>
#include <cstdint>

#include "core/memory/dtype.h"

struct CUstream_st;

namespace pelton::codec {

// Device memory that an encoding in flight needs. Units: bytes.
inline constexpr uint64_t kMinMaxScratchBytes = 16 << 10;

// A chunk in device memory. Shape: as Codec::Encode and Decode have it. Tensors are aligned to
// their elements, `encoded` to 32. Threads: a value. Owns: nothing.
struct GpuChunk {
  uint64_t count;
  DType dtype;
  CUstream_st* stream;
};

// Enqueue on the stream and return: nothing waits. The result is CUDA's own error code, 0 for
// success, for the caller to put into words with the rank, the bucket and the tensor.
// Shape: scratch [kMinMaxScratchBytes], not shared with other streams, aligned to 16.
// Requires: IsConvertible(dtype). Defined only where PELTON_CUDA is.
int EncodeMinMaxOnGpu(const std::byte* source, GpuChunk chunk, std::byte* encoded,
                      std::byte* scratch);
int DecodeMinMaxOnGpu(const std::byte* encoded, GpuChunk chunk, std::byte* target);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_CUDA_MIN_MAX_UINT8_H_
