// What the kernels of MinMaxUInt8 share: elements as float32 and back, a block's range, a chunk's
// header. For sources that nvcc compiles. The arithmetic of an element is specification.h's.
#ifndef PELTON_ALGORITHMS_CODEC_CUDA_MIN_MAX_DEVICE_CUH_
#define PELTON_ALGORITHMS_CODEC_CUDA_MIN_MAX_DEVICE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "algorithms/codec/specification.h"

namespace pelton::codec {

inline constexpr int kWarp = 32;
inline constexpr int kHeaderBytes = 32;

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(double x) { return __double2float_rn(x); }
__device__ inline float ToFloat(__half x) { return __half2float(x); }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ inline void FromFloat(float x, float* to) { *to = x; }
__device__ inline void FromFloat(float x, double* to) { *to = x; }
__device__ inline void FromFloat(float x, __half* to) { *to = __float2half_rn(x); }
__device__ inline void FromFloat(float x, __nv_bfloat16* to) { *to = __float2bfloat16_rn(x); }

// The CPU's NaN; the processor's conversions make another one, and messages are compared by bytes.
__device__ inline void QuietNan(float* to) { *to = __uint_as_float(0x7FC00000u); }
__device__ inline void QuietNan(double* to) { *to = __longlong_as_double(0x7FF8000000000000ll); }
__device__ inline void QuietNan(__half* to) { *to = __ushort_as_half(0x7E00); }
__device__ inline void QuietNan(__nv_bfloat16* to) { *to = __ushort_as_bfloat16(0x7FC0); }

template <typename T>
__device__ void BoundFromFloat(float bound, T* to) {
  if (IsNan(bound)) {
    QuietNan(to);
  } else {
    FromFloat(bound, to);
  }
}

// Four elements that lie together, read and written at once.
template <typename T>
struct alignas(4 * sizeof(T) <= 16 ? 4 * sizeof(T) : 16) Four {
  T lanes[4];
};

template <typename T>
bool IsAligned(const void* tensor) {
  return reinterpret_cast<uintptr_t>(tensor) % alignof(Four<T>) == 0;
}

// As Widened, in one step for each end. Of zeros of both signs it takes the negative one for the
// smaller, and Canonical makes them alike.
__device__ inline MinMax WidenedAtOnce(MinMax range, float x) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(range.min) : "f"(x));
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(range.max) : "f"(x));
  return range;
}

// Both ranges in one; NaN in either stays.
__device__ inline MinMax Merged(MinMax a, MinMax b) {
  return {WidenedAtOnce(a, b.min).min, WidenedAtOnce(a, b.max).max};
}

// The range of a warp's threads, in the first one.
__device__ inline MinMax MergedOverWarp(MinMax range) {
  for (int distance = kWarp / 2; distance != 0; distance /= 2) {
    const MinMax other = {__shfl_down_sync(~0u, range.min, distance),
                          __shfl_down_sync(~0u, range.max, distance)};
    range = Merged(range, other);
  }
  return range;
}

// The range of all kThreads threads of the block, in its first thread. Once in a kernel: its shared
// memory is not freed for a second call.
template <int kThreads>
__device__ MinMax MergedOverBlock(MinMax range) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kWarps <= kWarp);
  __shared__ MinMax of_warp[kWarps];
  range = MergedOverWarp(range);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = range;
  __syncthreads();
  if (threadIdx.x >= kWarp) return range;
  return MergedOverWarp(threadIdx.x < kWarps ? of_warp[threadIdx.x] : MinMax{INFINITY, -INFINITY});
}

// As min_max_uint8.cc has it: zeros are +0, NaN the quiet one.
__device__ inline float Canonical(float bound) {
  return IsNan(bound) ? __uint_as_float(0x7FC00000u) : bound + 0.0f;
}
__device__ inline MinMax Canonical(MinMax range) {
  return {Canonical(range.min), Canonical(range.max)};
}

// Shape: encoded [kHeaderBytes] at least, at a multiple of 32. Requires: a canonical range.
template <typename T>
__device__ void WriteHeader(MinMax range, uint8_t* encoded) {
  constexpr int kCount = kHeaderBytes / static_cast<int>(sizeof(T));
  T bounds[kCount] = {};
  BoundFromFloat(range.min, &bounds[0]);
  BoundFromFloat(range.max, &bounds[1]);
  for (int i = 0; i < kCount; ++i) reinterpret_cast<T*>(encoded)[i] = bounds[i];
}

template <typename T>
__device__ MinMaxScale ScaleOfHeader(const uint8_t* encoded) {
  const T* const bounds = reinterpret_cast<const T*>(encoded);
  return MinMaxScaleOf({ToFloat(bounds[0]), ToFloat(bounds[1])});
}

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_CUDA_MIN_MAX_DEVICE_CUH_
