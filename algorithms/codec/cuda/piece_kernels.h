// The C interface of libpelton_kernels.so: what a compressed exchange computes on a GPU.
//
// A library of its own, looked up when a model on a GPU asks for it, because its kernels need
// CUDA's runtime and the rest of Pelton runs without one. Each function enqueues on the stream,
// whose device is the current one, and returns CUDA's error code, 0 for success; nothing waits.
// Tensors are in device memory, aligned to their elements, messages to 32 bytes. `dtype` is a DType
// that codec::IsConvertible; another one is an invalid value (1), as are no versions to merge and a
// divisor of 0.
//
// A tensor is encoded in pieces of kGpuPieceCount elements, the last one being shorter, each a
// chunk of MinMaxUInt8's format (codec/min_max_uint8.cc) of its own, one behind the other: the
// bytes of PieceCodec with that codec. The results equal the CPU's bit by bit, but for the payload
// of NaNs.
#ifndef PELTON_ALGORITHMS_CODEC_CUDA_PIECE_KERNELS_H_
#define PELTON_ALGORITHMS_CODEC_CUDA_PIECE_KERNELS_H_

#include <cstdint>

struct CUstream_st;

// Counted up when the interface changes.
#define PELTON_KERNELS_VERSION 2

// What is compiled with everything hidden shows these functions.
#define PELTON_KERNELS_EXPORT __attribute__((visibility("default")))

namespace pelton::codec {
inline constexpr uint64_t kGpuPieceCount = 16384;
}

extern "C" {

// One message of each of `count` ranks, in rank order: the first one, and from one to the next.
// Units of the stride: bytes, a multiple of 32. Threads: a value. Owns: nothing.
struct PeltonMessages {
  void* first;
  uint64_t stride_bytes;
  int32_t count;
};

PELTON_KERNELS_EXPORT int pelton_kernels_version();

// Shape: source [count], encoded [bytes of the encoded pieces], every one of which is written.
PELTON_KERNELS_EXPORT int pelton_encode_pieces(const void* source, uint64_t count, int32_t dtype,
                                               void* encoded, CUstream_st* stream);
// Shape: as pelton_encode_pieces.
PELTON_KERNELS_EXPORT int pelton_decode_pieces(const void* encoded, uint64_t count, int32_t dtype,
                                               void* target, CUstream_st* stream);
// Decodes all versions of a tensor, adds them in rank order, divides by `divisor` if it is not 1,
// and encodes the result: the arithmetic of PieceSum in stage/piece_codec.h (16-bit types are added
// in float32 and rounded once). Shape: each of `versions` and `encoded` as pelton_encode_pieces.
// `encoded` overlaps none of them.
PELTON_KERNELS_EXPORT int pelton_merge_pieces(const PeltonMessages* versions, uint64_t count,
                                              int32_t dtype, uint64_t divisor, void* encoded,
                                              CUstream_st* stream);
}

#endif  // PELTON_ALGORITHMS_CODEC_CUDA_PIECE_KERNELS_H_
