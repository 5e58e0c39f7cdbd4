// A thread block has a piece, from its first byte read to its last one written.
#include "algorithms/codec/cuda/piece_kernels.h"

#include <cuda_runtime.h>

#include "algorithms/codec/cuda/min_max_device.cuh"
#include "algorithms/codec/cuda/piece_device.cuh"
#include "comm/reduction/cuda/rounding.cuh"
#include "core/memory/dtype.h"

namespace pelton::codec {
namespace {

constexpr int kFlagThreads = 128;

// To a T and on to float32, as the codec reads a sum that was rounded to T.
template <typename T>
__device__ float Rounded(float sum) {
  T element;
  FromFloat(sum, &element);
  return ToFloat(element);
}
template <typename T>
__device__ float Rounded(double sum) {
  return ToFloat(sum);
}

// Two blocks share a multiprocessor, but of doubles, whose conversion takes more registers.
template <typename T>
__global__ void __launch_bounds__(kPieceThreads, sizeof(T) == 8 ? 1 : 2)
    EncodePieces(const T* source, uint64_t count, bool is_aligned, uint8_t* encoded) {
  const uint32_t piece_count = CountOfPiece(count);
  Share<float> x = {};
  LoadPiece(source + PieceBegin(), piece_count, is_aligned, x);
  EncodePiece<T>(x, piece_count, encoded + EncodedBegin());
}

template <typename T>
__global__ void __launch_bounds__(kPieceThreads, sizeof(T) == 8 ? 1 : 2)
    DecodePieces(const uint8_t* encoded, uint64_t count, bool is_aligned, T* target) {
  const uint32_t piece_count = CountOfPiece(count);
  const uint8_t* const piece = encoded + EncodedBegin();
  const MinMaxScale scale = ScaleOfHeader<T>(piece);
#pragma unroll 2
  for (int f = 0; f < kFours; ++f) {
    const Four<T> x = DecodeFour<T>(piece + kHeaderBytes, FirstOf(f), piece_count, scale);
    StoreFour(x, FirstOf(f), piece_count, is_aligned, target + PieceBegin());
  }
}

template <typename T, typename Sum>
__device__ __forceinline__ void AddVersion(const uint8_t* version, uint32_t count,
                                           Share<Sum>& sum) {
  const MinMaxScale scale = ScaleOfHeader<T>(version);
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
    const Four<T> x = DecodeFour<T>(version + kHeaderBytes, FirstOf(f), count, scale);
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      sum.of[f][lane] = Added(sum.of[f][lane], Widen(x.lanes[lane]));
    }
  }
}

template <typename T, typename Sum>
__global__ void __launch_bounds__(kPieceThreads)
    MergePieces(PeltonMessages versions, uint64_t count, Sum divisor, uint8_t* encoded) {
  const uint32_t piece_count = CountOfPiece(count);
  const uint8_t* version = static_cast<const uint8_t*>(versions.first) + EncodedBegin();
  Share<Sum> sum;
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) sum.of[f][lane] = -0.0f;  // -0 + x is x, to the last bit
  }
#pragma unroll 1
  for (int32_t rank = 0; rank < versions.count; ++rank, version += versions.stride_bytes) {
    AddVersion<T>(version, piece_count, sum);
  }
  Share<float> x;
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      Sum mean = sum.of[f][lane];
      if (divisor != 1) mean = Divided(mean, divisor);
      x.of[f][lane] = Rounded<T>(mean);
    }
  }
  EncodePiece<T>(x, piece_count, encoded + EncodedBegin());
}

// Unsigned integers of the element's size: only +0 has no bit set.
template <typename Bits>
__global__ void FlagsFromTail(const Bits* tail, uint64_t count, PeltonMessages messages) {
  const uint64_t i = static_cast<uint64_t>(blockIdx.x) * kFlagThreads + threadIdx.x;
  if (i >= (count + 31) / 32 * 32) return;
  const uint8_t flag = i < count && tail[i] != 0 ? 1 : 0;
  uint8_t* message = static_cast<uint8_t*>(messages.first);
  for (int32_t rank = 0; rank < messages.count; ++rank, message += messages.stride_bytes) {
    message[i] = flag;
  }
}

template <typename T>
__global__ void TailFromFlags(PeltonMessages messages, uint64_t count, T* tail) {
  const uint64_t i = static_cast<uint64_t>(blockIdx.x) * kFlagThreads + threadIdx.x;
  if (i >= count) return;
  bool is_used = false;
  const uint8_t* message = static_cast<const uint8_t*>(messages.first);
  for (int32_t rank = 0; rank < messages.count; ++rank, message += messages.stride_bytes) {
    is_used = is_used || message[i] != 0;
  }
  FromFloat(is_used ? 1.0f : 0.0f, &tail[i]);
}

unsigned PiecesOf(uint64_t count) {
  return static_cast<unsigned>((count + kGpuPieceCount - 1) / kGpuPieceCount);
}

// As many as the flags of so many elements need, those up to a multiple of 32 included.
unsigned FlagBlocks(uint64_t count) {
  return static_cast<unsigned>((count + kFlagThreads - 1) / kFlagThreads);
}
static_assert(kFlagThreads % 32 == 0);

template <typename T>
struct ElementType {
  using Type = T;
};

// f(ElementType<T>) of the dtype's T. Errors: cudaErrorInvalidValue: no kernel is for that dtype.
template <typename F>
int ForElementsOf(int32_t dtype, F f) {
  switch (dtype) {
    case static_cast<int32_t>(DType::kFloat32):
      return f(ElementType<float>());
    case static_cast<int32_t>(DType::kFloat64):
      return f(ElementType<double>());
    case static_cast<int32_t>(DType::kFloat16):
      return f(ElementType<__half>());
    case static_cast<int32_t>(DType::kBFloat16):
      return f(ElementType<__nv_bfloat16>());
    default:
      return cudaErrorInvalidValue;
  }
}

int FlagsByBits(const void* tail, uint64_t count, size_t element_bytes,
                const PeltonMessages& messages, CUstream_st* stream) {
  const unsigned blocks = FlagBlocks(count);
  if (element_bytes == 2) {
    FlagsFromTail<<<blocks, kFlagThreads, 0, stream>>>(static_cast<const uint16_t*>(tail), count,
                                                       messages);
  } else if (element_bytes == 4) {
    FlagsFromTail<<<blocks, kFlagThreads, 0, stream>>>(static_cast<const uint32_t*>(tail), count,
                                                       messages);
  } else {
    FlagsFromTail<<<blocks, kFlagThreads, 0, stream>>>(static_cast<const uint64_t*>(tail), count,
                                                       messages);
  }
  return cudaGetLastError();
}

}  // namespace
}  // namespace pelton::codec

using pelton::codec::ForElementsOf;
using pelton::codec::IsAligned;
using pelton::codec::kFlagThreads;
using pelton::codec::kPieceThreads;
using pelton::codec::PiecesOf;

int pelton_kernels_version() { return PELTON_KERNELS_VERSION; }

int pelton_encode_pieces(const void* source, uint64_t count, int32_t dtype, void* encoded,
                         CUstream_st* stream) {
  return ForElementsOf(dtype, [&](auto element) -> int {
    using T = typename decltype(element)::Type;
    if (count == 0) return cudaSuccess;
    pelton::codec::EncodePieces<<<PiecesOf(count), kPieceThreads, 0, stream>>>(
        static_cast<const T*>(source), count, IsAligned<T>(source), static_cast<uint8_t*>(encoded));
    return cudaGetLastError();
  });
}

int pelton_decode_pieces(const void* encoded, uint64_t count, int32_t dtype, void* target,
                         CUstream_st* stream) {
  return ForElementsOf(dtype, [&](auto element) -> int {
    using T = typename decltype(element)::Type;
    if (count == 0) return cudaSuccess;
    pelton::codec::DecodePieces<<<PiecesOf(count), kPieceThreads, 0, stream>>>(
        static_cast<const uint8_t*>(encoded), count, IsAligned<T>(target), static_cast<T*>(target));
    return cudaGetLastError();
  });
}

int pelton_merge_pieces(const PeltonMessages* versions, uint64_t count, int32_t dtype,
                        uint64_t divisor, void* encoded, CUstream_st* stream) {
  return ForElementsOf(dtype, [&](auto element) -> int {
    using T = typename decltype(element)::Type;
    using Sum = pelton::SumOf<T>;
    if (versions->count < 1 || divisor < 1) return cudaErrorInvalidValue;
    if (count == 0) return cudaSuccess;
    pelton::codec::MergePieces<T, Sum><<<PiecesOf(count), kPieceThreads, 0, stream>>>(
        *versions, count, static_cast<Sum>(divisor), static_cast<uint8_t*>(encoded));
    return cudaGetLastError();
  });
}

int pelton_flags_from_tail(const void* tail, uint64_t count, int32_t dtype,
                           const PeltonMessages* messages, CUstream_st* stream) {
  return ForElementsOf(dtype, [&](auto element) -> int {
    using T = typename decltype(element)::Type;
    if (count == 0) return cudaSuccess;
    return pelton::codec::FlagsByBits(tail, count, sizeof(T), *messages, stream);
  });
}

int pelton_tail_from_flags(const PeltonMessages* messages, uint64_t count, int32_t dtype,
                           void* tail, CUstream_st* stream) {
  return ForElementsOf(dtype, [&](auto element) -> int {
    using T = typename decltype(element)::Type;
    if (count == 0) return cudaSuccess;
    pelton::codec::TailFromFlags<<<pelton::codec::FlagBlocks(count), kFlagThreads, 0, stream>>>(
        *messages, count, static_cast<T*>(tail));
    return cudaGetLastError();
  });
}
