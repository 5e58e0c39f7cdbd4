// A piece of a tensor in the registers of one thread block, so that its memory is read once. For
// sources that nvcc compiles.
#ifndef PELTON_ALGORITHMS_CODEC_CUDA_PIECE_DEVICE_CUH_
#define PELTON_ALGORITHMS_CODEC_CUDA_PIECE_DEVICE_CUH_

#include <cstdint>

#include "algorithms/codec/cuda/min_max_device.cuh"
#include "algorithms/codec/cuda/piece_kernels.h"
#include "algorithms/codec/specification.h"

namespace pelton::codec {

// A thread has few enough elements for two blocks to share a multiprocessor: one loads while the
// other computes.
inline constexpr int kPieceThreads = 1024;
inline constexpr int kFours = kGpuPieceCount / 4 / kPieceThreads;
static_assert(kFours * 4 * kPieceThreads == kGpuPieceCount);
inline constexpr uint64_t kWholePieceBytes = kHeaderBytes + kGpuPieceCount;

// What one thread has of a piece: four elements at FirstOf(f), for each f. All loops over it are
// unrolled, which is what keeps it in registers.
template <typename T>
struct Share {
  T of[kFours][4];
};

__device__ inline uint32_t FirstOf(int f) { return 4 * (f * kPieceThreads + threadIdx.x); }

// Block b has piece b. The last piece may be shorter.
__device__ inline uint64_t PieceBegin() { return blockIdx.x * kGpuPieceCount; }
__device__ inline uint64_t EncodedBegin() { return blockIdx.x * kWholePieceBytes; }
__device__ inline uint32_t CountOfPiece(uint64_t tensor_count) {
  const uint64_t rest = tensor_count - PieceBegin();
  return static_cast<uint32_t>(rest < kGpuPieceCount ? rest : kGpuPieceCount);
}

// Up to where a piece of so many elements has bytes.
__device__ inline uint32_t RoundedUp(uint32_t count) { return (count + 31) / 32 * 32; }

// Elements from `count` on are left as they are.
template <typename T>
__device__ __forceinline__ void LoadPiece(const T* piece, uint32_t count, bool is_aligned,
                                          Share<float>& x) {
  if (is_aligned && count == kGpuPieceCount) {
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
      const Four<T> four = *reinterpret_cast<const Four<T>*>(piece + FirstOf(f));
#pragma unroll
      for (int lane = 0; lane < 4; ++lane) x.of[f][lane] = ToFloat(four.lanes[lane]);
    }
    return;
  }
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      const uint32_t i = FirstOf(f) + lane;
      if (i < count) x.of[f][lane] = ToFloat(piece[i]);
    }
  }
}

// The range of a piece, canonical, in every thread. Once in a kernel, as MergedOverBlock.
__device__ __forceinline__ MinMax RangeOfPiece(const Share<float>& x, uint32_t count) {
  __shared__ MinMax of_piece;
  MinMax range = {INFINITY, -INFINITY};
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      if (FirstOf(f) + lane < count) range = Widened(range, x.of[f][lane]);
    }
  }
  range = MergedOverBlock<kPieceThreads>(range);
  if (threadIdx.x == 0) of_piece = Canonical(range);
  __syncthreads();
  return of_piece;
}

// The whole message of a piece of elements that were a T each. Shape: encoded [kHeaderBytes +
// RoundedUp(count)], at a multiple of 32. Requires: count > 0.
template <typename T>
__device__ __forceinline__ void EncodePiece(const Share<float>& x, uint32_t count,
                                            uint8_t* encoded) {
  const MinMax range = RangeOfPiece(x, count);
  if (threadIdx.x == 0) WriteHeader<T>(range, encoded);
  const MinMaxScale scale = MinMaxScaleOf(range);
  uint8_t* const bytes = encoded + kHeaderBytes;
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
    const uint32_t first = FirstOf(f);
    if (first >= RoundedUp(count)) continue;
    Four<uint8_t> packed;
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      packed.lanes[lane] = first + lane < count ? EncodeMinMax(x.of[f][lane], scale) : 0;
    }
    *reinterpret_cast<Four<uint8_t>*>(bytes + first) = packed;
  }
}

// Four elements of a piece from `first` on; what is beyond `count` is undefined. Shape: bytes
// [RoundedUp(count)], those behind a header.
template <typename T>
__device__ __forceinline__ Four<T> DecodeFour(const uint8_t* bytes, uint32_t first, uint32_t count,
                                              MinMaxScale scale) {
  Four<uint8_t> packed = {};
  if (first < count) packed = *reinterpret_cast<const Four<uint8_t>*>(bytes + first);
  Four<T> x;
#pragma unroll
  for (int lane = 0; lane < 4; ++lane) {
    FromFloat(DecodeMinMax(packed.lanes[lane], scale), &x.lanes[lane]);
  }
  return x;
}

// Shape: piece [count].
template <typename T>
__device__ __forceinline__ void StoreFour(const Four<T>& x, uint32_t first, uint32_t count,
                                          bool is_aligned, T* piece) {
  if (is_aligned && first + 4 <= count) {
    *reinterpret_cast<Four<T>*>(piece + first) = x;
    return;
  }
#pragma unroll
  for (int lane = 0; lane < 4; ++lane) {
    if (first + lane < count) piece[first + lane] = x.lanes[lane];
  }
}

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_CUDA_PIECE_DEVICE_CUH_
