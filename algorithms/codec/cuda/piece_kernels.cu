// A thread block has a piece, from its first byte read to its last one written.
#include "algorithms/codec/cuda/piece_kernels.h"

#include <cuda_runtime.h>

#include "algorithms/codec/cuda/min_max_device.cuh"
#include "algorithms/codec/cuda/piece_device.cuh"
#include "algorithms/codec/quick_min_max.h"
#include "comm/reduction/cuda/rounding.cuh"
#include "core/memory/dtype.h"

namespace pelton::codec {
namespace {

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
  __shared__ PieceScale scale;
  const uint32_t piece_count = CountOfPiece(count);
  const uint8_t* const piece = encoded + EncodedBegin();
  const ShareOfBytes bytes = LoadBytes(piece + kHeaderBytes, piece_count);
  if (threadIdx.x == 0) scale = PieceScaleOf(ScaleOfHeader<T>(piece));
  __syncthreads();
  Four<T> four;
  ForEachDecoded<T>(bytes, scale, [&](T element, int f, int lane) {
    four.lanes[lane] = element;
    if (lane == 3) StoreFour(four, FirstOf(f), piece_count, is_aligned, target + PieceBegin());
  });
}

// A sum's division by one number for all elements. Threads: a value. Owns: nothing.
template <typename Sum>
struct Mean {
  Sum divisor;
  Sum inverse;
  bool is_exact;  // the inverse is: a product with it is rounded as the quotient is
  bool is_quick;  // QuickQuotient serves sums of usual magnitudes
};

constexpr uint64_t kLargestQuickDivisor = 1 << 20;

template <typename Sum>
Mean<Sum> MeanOver(uint64_t divisor) {
  const bool is_power_of_two = (divisor & (divisor - 1)) == 0;
  return {static_cast<Sum>(divisor), 1 / static_cast<Sum>(divisor), is_power_of_two,
          divisor <= kLargestQuickDivisor};
}

__device__ __forceinline__ float Over(float sum, const Mean<float>& mean) {
  if (mean.is_exact) return Multiplied(sum, mean.inverse);
  const float magnitude = fabsf(sum);
  if (mean.is_quick && magnitude >= 0x1p-60f && magnitude <= 0x1p90f) {
    return QuickQuotient(sum, mean.divisor, mean.inverse);
  }
  return Divided(sum, mean.divisor);
}
__device__ __forceinline__ double Over(double sum, const Mean<double>& mean) {
  return mean.is_exact ? Multiplied(sum, mean.inverse) : Divided(sum, mean.divisor);
}

// So many versions' scales are worked out at a time, each by one thread for all.
constexpr int32_t kScales = 32;

template <typename T, typename Sum>
__global__ void __launch_bounds__(kPieceThreads, sizeof(T) == 8 ? 1 : 2)
    MergePieces(PeltonMessages versions, uint64_t count, Mean<Sum> mean, uint8_t* encoded) {
  __shared__ PieceScale scales[kScales];
  const uint32_t piece_count = CountOfPiece(count);
  const uint8_t* const first = static_cast<const uint8_t*>(versions.first) + EncodedBegin();
  Share<Sum> sum;
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) sum.of[f][lane] = -0.0f;  // -0 + x is x, to the last bit
  }
#pragma unroll 1
  for (int32_t rank = 0; rank < versions.count; ++rank) {
    const uint8_t* const version = first + rank * versions.stride_bytes;
    const ShareOfBytes bytes = LoadBytes(version + kHeaderBytes, piece_count);
    const int32_t place = rank % kScales;
    if (place == 0) {
      __syncthreads();  // the scales before are no longer read
      const int32_t mine = rank + static_cast<int32_t>(threadIdx.x);
      if (threadIdx.x < kScales && mine < versions.count) {
        const uint8_t* const header = first + mine * versions.stride_bytes;
        scales[threadIdx.x] = PieceScaleOf(ScaleOfHeader<T>(header));
      }
      __syncthreads();
    }
    ForEachDecoded<T>(bytes, scales[place], [&](T element, int f, int lane) {
      sum.of[f][lane] = Added(sum.of[f][lane], Widen(element));
    });
  }
  Share<float> x;
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) x.of[f][lane] = Rounded<T>(Over(sum.of[f][lane], mean));
  }
  EncodePiece<T>(x, piece_count, encoded + EncodedBegin());
}

unsigned PiecesOf(uint64_t count) {
  return static_cast<unsigned>((count + kGpuPieceCount - 1) / kGpuPieceCount);
}

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

}  // namespace
}  // namespace pelton::codec

using pelton::codec::ForElementsOf;
using pelton::codec::IsAligned;
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
        *versions, count, pelton::codec::MeanOver<Sum>(divisor), static_cast<uint8_t*>(encoded));
    return cudaGetLastError();
  });
}
