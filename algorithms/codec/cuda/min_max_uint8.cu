// Three kernels make a chunk: partial ranges, the header from them, the bytes. The arithmetic of an
// element is specification.h's, the one that the CPU's reference compiles.
#include "algorithms/codec/cuda/min_max_uint8.h"

#include <cuda_runtime.h>

#include "algorithms/codec/cuda/min_max_device.cuh"
#include "algorithms/codec/specification.h"

namespace pelton::codec {
namespace {

constexpr int kThreads = 256;
constexpr int kPartials = 1024;  // blocks of the first kernel at most
static_assert(kPartials * sizeof(MinMax) <= kMinMaxScratchBytes);

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
  range = MergedOverBlock<kThreads>(range);
  if (threadIdx.x == 0) partials[blockIdx.x] = range;
}

// One block: the header, the zeros behind the payload, and the range for the third kernel.
template <typename T>
__global__ void FinishRange(MinMax* partials, int partial_count, uint64_t count, uint8_t* encoded) {
  MinMax range = {INFINITY, -INFINITY};
  for (int p = threadIdx.x; p < partial_count; p += kThreads) range = Merged(range, partials[p]);
  range = MergedOverBlock<kThreads>(range);
  const uint64_t end = (count + 31) / 32 * 32;
  for (uint64_t i = count + threadIdx.x; i < end; i += kThreads) encoded[kHeaderBytes + i] = 0;
  if (threadIdx.x != 0) return;
  if (count == 0) range = {0.0f, 0.0f};
  range = Canonical(range);
  partials[0] = range;
  WriteHeader<T>(range, encoded);
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
  const MinMaxScale scale = ScaleOfHeader<T>(encoded);
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
int Encode(const std::byte* source, GpuChunk chunk, std::byte* encoded, std::byte* scratch) {
  const T* const elements = reinterpret_cast<const T*>(source);
  auto* const partials = reinterpret_cast<MinMax*>(scratch);
  auto* const bytes = reinterpret_cast<uint8_t*>(encoded);
  const bool is_aligned = IsAligned<T>(source);
  const int blocks = BlocksFor(chunk.count);
  PartialRanges<T>
      <<<blocks, kThreads, 0, chunk.stream>>>(elements, chunk.count, is_aligned, partials);
  FinishRange<T><<<1, kThreads, 0, chunk.stream>>>(partials, blocks, chunk.count, bytes);
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
