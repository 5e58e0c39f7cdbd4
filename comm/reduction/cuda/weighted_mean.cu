// Bound by memory: each thread has 16 bytes of the target, and reads as many of each tensor.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "comm/reduction/combinable.h"
#include "comm/reduction/cuda/mean_kernel.h"
#include "comm/reduction/cuda/rounding.cuh"
#include "core/memory/dtype.h"

namespace pelton {
namespace {

constexpr int kThreads = 256;
constexpr uint64_t kMostBlocks = 4096;
constexpr int kPackBytes = 16;

__device__ void Narrow(float x, float* to) { *to = x; }
__device__ void Narrow(double x, double* to) { *to = x; }
__device__ void Narrow(float x, __half* to) { *to = __float2half_rn(x); }
__device__ void Narrow(float x, __nv_bfloat16* to) { *to = __float2bfloat16_rn(x); }

template <typename T>
struct alignas(kPackBytes) Pack {
  static constexpr int kCount = kPackBytes / sizeof(T);
  T lanes[kCount];
};

// The elements of `tensor` from `first` on; those from `count` on are zeros.
template <typename T>
__device__ __forceinline__ Pack<T> Load(const void* tensor, uint64_t first, uint64_t count,
                                        bool is_aligned) {
  const T* const from = static_cast<const T*>(tensor) + first;
  if (is_aligned && first + Pack<T>::kCount <= count) {
    return *reinterpret_cast<const Pack<T>*>(from);
  }
  Pack<T> pack = {};
  for (int lane = 0; lane < Pack<T>::kCount; ++lane) {
    if (first + lane < count) pack.lanes[lane] = from[lane];
  }
  return pack;
}

template <typename T>
__device__ __forceinline__ void Store(const Pack<T>& pack, uint64_t first, uint64_t count,
                                      bool is_aligned, void* tensor) {
  T* const to = static_cast<T*>(tensor) + first;
  if (is_aligned && first + Pack<T>::kCount <= count) {
    *reinterpret_cast<Pack<T>*>(to) = pack;
    return;
  }
  for (int lane = 0; lane < Pack<T>::kCount; ++lane) {
    if (first + lane < count) to[lane] = pack.lanes[lane];
  }
}

// Fills in the factors of all tensors, rounded to what sums are kept in, for the whole block.
// Returns whether they are equal shares.
template <typename Sum>
__device__ bool TakeFactors(const PeltonMean& mean, Sum* factors) {
  const int count = 1 + mean.source_count;
  bool are_shares = true;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    double factor = mean.factors[i];
    if (i > 0 && mean.arrived != nullptr) factor = Multiplied(factor, mean.arrived[i - 1]);
    const double distance = Added(Multiplied(factor, static_cast<double>(count)), -1.0);
    are_shares = are_shares && fabs(distance) < kShareRounding;
    factors[i] = static_cast<Sum>(factor);
  }
  return __syncthreads_and(are_shares) != 0;
}

// `are_aligned`: own and target are, to kPackBytes; the sources' always are.
template <typename T>
__global__ void __launch_bounds__(kThreads) WeightedMeanOf(PeltonMean mean, bool are_aligned) {
  using Sum = SumOf<T>;
  extern __shared__ double shared[];
  Sum* const factors = reinterpret_cast<Sum*>(shared);
  const bool are_shares = TakeFactors(mean, factors);
  const Sum divisor = static_cast<Sum>(1 + mean.source_count);
  constexpr uint64_t kLanes = Pack<T>::kCount;
  const uint64_t step = kLanes * kThreads * gridDim.x;
  uint64_t first = kLanes * (static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x);
  for (; first < mean.count; first += step) {
    const Pack<T> own = Load<T>(mean.own, first, mean.count, are_aligned);
    Sum sum[kLanes];
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      const Sum x = Widen(own.lanes[lane]);
      sum[lane] = are_shares ? x : Multiplied(factors[0], x);
    }
    const char* theirs = static_cast<const char*>(mean.theirs);
    for (int32_t s = 1; s <= mean.source_count; ++s, theirs += mean.stride_bytes) {
      const Pack<T> pack = Load<T>(theirs, first, mean.count, true);
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        const Sum x = Widen(pack.lanes[lane]);
        sum[lane] = Added(sum[lane], are_shares ? x : Multiplied(factors[s], x));
      }
    }
    Pack<T> result;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      Narrow(are_shares ? Divided(sum[lane], divisor) : sum[lane], &result.lanes[lane]);
    }
    Store(result, first, mean.count, are_aligned, mean.target);
  }
}

template <typename T>
int Launch(const PeltonMean& mean, CUstream_st* stream) {
  const uint64_t packs = (mean.count + Pack<T>::kCount - 1) / Pack<T>::kCount;
  const auto blocks =
      static_cast<unsigned>(std::min(kMostBlocks, (packs + kThreads - 1) / kThreads));
  const auto addresses =
      reinterpret_cast<uintptr_t>(mean.own) | reinterpret_cast<uintptr_t>(mean.target);
  const size_t shared_bytes = (1 + static_cast<size_t>(mean.source_count)) * sizeof(double);
  WeightedMeanOf<T><<<blocks, kThreads, shared_bytes, stream>>>(mean, addresses % kPackBytes == 0);
  return cudaGetLastError();
}

}  // namespace
}  // namespace pelton

int pelton_weighted_mean(const PeltonMean* mean, CUstream_st* stream) {
  if (mean->source_count < 0 || mean->stride_bytes % pelton::kPackBytes != 0) {
    return cudaErrorInvalidValue;
  }
  const auto dtype = static_cast<pelton::DType>(mean->dtype);
  if (!pelton::IsCombinable(dtype)) return cudaErrorInvalidValue;
  if (mean->count == 0) return cudaSuccess;
  switch (dtype) {
    case pelton::DType::kFloat64:
      return pelton::Launch<double>(*mean, stream);
    case pelton::DType::kFloat16:
      return pelton::Launch<__half>(*mean, stream);
    case pelton::DType::kBFloat16:
      return pelton::Launch<__nv_bfloat16>(*mean, stream);
    default:
      return pelton::Launch<float>(*mean, stream);
  }
}
