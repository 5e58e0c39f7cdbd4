// Three kernels make a chunk: partial ranges, the header from them, the bytes. The arithmetic of an
// element is specification.h's, the one that the CPU's reference compiles.
#include "algorithms/codec/cuda/min_max_uint8.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "algorithms/codec/specification.h"

namespace pelton::codec {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kPartials = 1024;  // blocks of the first kernel at most
constexpr int kHeaderBytes = 32;
static_assert(kPartials * sizeof(MinMax) <= kMinMaxScratchBytes);

__device__ float ToFloat(float x) { return x; }
__device__ float ToFloat(double x) { return __double2float_rn(x); }
__device__ float ToFloat(__half x) { return __half2float(x); }
__device__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ void FromFloat(float x, float* to) { *to = x; }
__device__ void FromFloat(float x, double* to) { *to = x; }
__device__ void FromFloat(float x, __half* to) { *to = __float2half_rn(x); }
__device__ void FromFloat(float x, __nv_bfloat16* to) { *to = __float2bfloat16_rn(x); }

// Both ranges in one; NaN in either stays.
__device__ MinMax Merged(MinMax a, MinMax b) {
  const MinMax lower = Widened(a, b.min);
  const MinMax upper = Widened(a, b.max);
  return {lower.min, upper.max};
}

// The range of all threads of the block, in its first thread.
__device__ MinMax MergedOverBlock(MinMax range) {
  __shared__ MinMax of_warp[kThreads / kWarp];
  for (int distance = kWarp / 2; distance != 0; distance /= 2) {
    const MinMax other = {__shfl_down_sync(~0u, range.min, distance),
                          __shfl_down_sync(~0u, range.max, distance)};
    range = Merged(range, other);
  }
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = range;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kThreads / kWarp; ++warp) range = Merged(range, of_warp[warp]);
  }
  return range;
}

// Four elements that lie together, read and written at once.
template <typename T>
struct alignas(4 * sizeof(T) <= 16 ? 4 * sizeof(T) : 16) Four {
  T lanes[4];
};

template <typename T>
__global__ void PartialRanges(const T* source, uint64_t count, bool is_aligned, MinMax* partials) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * kThreads;
  const uint64_t first = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const uint64_t fours = is_aligned ? count / 4 : 0;
  MinMax range = {INFINITY, -INFINITY};
  for (uint64_t i = first; i < fours; i += stride) {
    const Four<T> x = reinterpret_cast<const Four<T>*>(source)[i];
    for (int lane = 0; lane < 4; ++lane) range = Widened(range, ToFloat(x.lanes[lane]));
  }
  for (uint64_t i = 4 * fours + first; i < count; i += stride) {
    range = Widened(range, ToFloat(source[i]));
  }
  range = MergedOverBlock(range);
  if (threadIdx.x == 0) partials[blockIdx.x] = range;
}

// As min_max_uint8.cc has it: zeros are +0, NaN the quiet one.
__device__ float Canonical(float bound) {
  return bound != bound ? __uint_as_float(0x7FC00000u) : bound + 0.0f;
}

// One block: the header, the zeros behind the payload, and the range for the third kernel.
template <typename T>
__global__ void WriteHeader(MinMax* partials, int partial_count, uint64_t count, uint8_t* encoded) {
  MinMax range = {INFINITY, -INFINITY};
  for (int p = threadIdx.x; p < partial_count; p += kThreads) range = Merged(range, partials[p]);
  range = MergedOverBlock(range);
  const uint64_t end = (count + 31) / 32 * 32;
  for (uint64_t i = count + threadIdx.x; i < end; i += kThreads) encoded[kHeaderBytes + i] = 0;
  if (threadIdx.x != 0) return;
  if (count == 0) range = {0.0f, 0.0f};
  range = {Canonical(range.min), Canonical(range.max)};
  partials[0] = range;
  T bounds[kHeaderBytes / sizeof(T)] = {};
  FromFloat(range.min, &bounds[0]);
  FromFloat(range.max, &bounds[1]);
  for (int i = 0; i < kHeaderBytes / static_cast<int>(sizeof(T)); ++i) {
    reinterpret_cast<T*>(encoded)[i] = bounds[i];
  }
}

template <typename T>
__global__ void WriteBytes(const T* source, uint64_t count, bool is_aligned, const MinMax* range,
                           uint8_t* bytes) {
  const MinMaxScale scale = MinMaxScaleOf(*range);
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * kThreads;
  const uint64_t first = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const uint64_t fours = is_aligned ? count / 4 : 0;
  for (uint64_t i = first; i < fours; i += stride) {
    const Four<T> x = reinterpret_cast<const Four<T>*>(source)[i];
    Four<uint8_t> packed;
    for (int lane = 0; lane < 4; ++lane) {
      packed.lanes[lane] = EncodeMinMax(ToFloat(x.lanes[lane]), scale);
    }
    reinterpret_cast<Four<uint8_t>*>(bytes)[i] = packed;
  }
  for (uint64_t i = 4 * fours + first; i < count; i += stride) {
    bytes[i] = EncodeMinMax(ToFloat(source[i]), scale);
  }
}

template <typename T>
__global__ void ReadBytes(const uint8_t* encoded, uint64_t count, bool is_aligned, T* target) {
  const T* const bounds = reinterpret_cast<const T*>(encoded);
  const MinMaxScale scale = MinMaxScaleOf({ToFloat(bounds[0]), ToFloat(bounds[1])});
  const uint8_t* const bytes = encoded + kHeaderBytes;
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * kThreads;
  const uint64_t first = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const uint64_t fours = is_aligned ? count / 4 : 0;
  for (uint64_t i = first; i < fours; i += stride) {
    const Four<uint8_t> packed = reinterpret_cast<const Four<uint8_t>*>(bytes)[i];
    Four<T> x;
    for (int lane = 0; lane < 4; ++lane) {
      FromFloat(DecodeMinMax(packed.lanes[lane], scale), &x.lanes[lane]);
    }
    reinterpret_cast<Four<T>*>(target)[i] = x;
  }
  for (uint64_t i = 4 * fours + first; i < count; i += stride) {
    FromFloat(DecodeMinMax(bytes[i], scale), &target[i]);
  }
}

int BlocksFor(uint64_t count) {
  const uint64_t blocks = (count / 4 + kThreads - 1) / kThreads;
  return blocks < 1 ? 1 : blocks > kPartials ? kPartials : static_cast<int>(blocks);
}

template <typename T>
bool IsAligned(const void* tensor) {
  return reinterpret_cast<uintptr_t>(tensor) % alignof(Four<T>) == 0;
}

template <typename T>
int Encode(const std::byte* source, GpuChunk chunk, std::byte* encoded, std::byte* scratch) {
  const T* const elements = reinterpret_cast<const T*>(source);
  auto* const partials = reinterpret_cast<MinMax*>(scratch);
  auto* const bytes = reinterpret_cast<uint8_t*>(encoded);
  const bool is_aligned = IsAligned<T>(source);
  const int blocks = BlocksFor(chunk.count);
  PartialRanges<T>
      <<<blocks, kThreads, 0, chunk.stream>>>(elements, chunk.count, is_aligned, partials);
  WriteHeader<T><<<1, kThreads, 0, chunk.stream>>>(partials, blocks, chunk.count, bytes);
  WriteBytes<T><<<blocks, kThreads, 0, chunk.stream>>>(elements, chunk.count, is_aligned, partials,
                                                       bytes + kHeaderBytes);
  return cudaGetLastError();
}

template <typename T>
int Decode(const std::byte* encoded, GpuChunk chunk, std::byte* target) {
  ReadBytes<T><<<BlocksFor(chunk.count), kThreads, 0, chunk.stream>>>(
      reinterpret_cast<const uint8_t*>(encoded), chunk.count, IsAligned<T>(target),
      reinterpret_cast<T*>(target));
  return cudaGetLastError();
}

}  // namespace

int EncodeMinMaxOnGpu(const std::byte* source, GpuChunk chunk, std::byte* encoded,
                      std::byte* scratch) {
  switch (chunk.dtype) {
    case DType::kFloat32:
      return Encode<float>(source, chunk, encoded, scratch);
    case DType::kFloat64:
      return Encode<double>(source, chunk, encoded, scratch);
    case DType::kFloat16:
      return Encode<__half>(source, chunk, encoded, scratch);
    case DType::kBFloat16:
      return Encode<__nv_bfloat16>(source, chunk, encoded, scratch);
    default:
      return cudaErrorInvalidValue;
  }
}

int DecodeMinMaxOnGpu(const std::byte* encoded, GpuChunk chunk, std::byte* target) {
  switch (chunk.dtype) {
    case DType::kFloat32:
      return Decode<float>(encoded, chunk, target);
    case DType::kFloat64:
      return Decode<double>(encoded, chunk, target);
    case DType::kFloat16:
      return Decode<__half>(encoded, chunk, target);
    case DType::kBFloat16:
      return Decode<__nv_bfloat16>(encoded, chunk, target);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace pelton::codec
