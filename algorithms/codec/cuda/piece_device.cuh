// A piece of a tensor in the registers of one thread block, so that its memory is read once. For
// sources that nvcc compiles.
#ifndef PELTON_ALGORITHMS_CODEC_CUDA_PIECE_DEVICE_CUH_
#define PELTON_ALGORITHMS_CODEC_CUDA_PIECE_DEVICE_CUH_

#include <cstdint>

#include "algorithms/codec/cuda/min_max_device.cuh"
#include "algorithms/codec/cuda/piece_kernels.h"
#include "algorithms/codec/quick_min_max.h"
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

// How the elements of a piece become bytes and back. Threads: a value. Owns: nothing.
struct PieceScale {
  MinMaxScale plain;
  QuickScale quick;
  bool is_quick;  // `quick` has a meaning
};

__device__ inline PieceScale PieceScaleOf(MinMaxScale scale) {
  const bool is_quick = IsQuick(scale);
  return {scale, is_quick ? QuickScaleOf(scale) : QuickScale{}, is_quick};
}

// The range of a piece, in the block's first thread. Once in a kernel, as MergedOverBlock.
__device__ __forceinline__ MinMax RangeOfPiece(const Share<float>& x, uint32_t count) {
  MinMax range = {INFINITY, -INFINITY};
  const bool is_whole = count == kGpuPieceCount;
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      if (is_whole || FirstOf(f) + lane < count) range = WidenedAtOnce(range, x.of[f][lane]);
    }
  }
  return MergedOverBlock<kPieceThreads>(range);
}

// The low bytes of four words, that of the first one lowest.
__device__ __forceinline__ uint32_t Packed(const uint32_t (&words)[4]) {
  const uint32_t low = __byte_perm(words[0], words[1], 0x0040);
  const uint32_t high = __byte_perm(words[2], words[3], 0x0040);
  return __byte_perm(low, high, 0x5410);
}

__device__ __forceinline__ void WriteWholePayload(const Share<float>& x, QuickScale scale,
                                                  uint8_t* bytes) {
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
    uint32_t words[4];
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      words[lane] = __float_as_uint(QuickEncode(x.of[f][lane], scale));
    }
    *reinterpret_cast<uint32_t*>(bytes + FirstOf(f)) = Packed(words);
  }
}

__device__ __forceinline__ void WritePayload(const Share<float>& x, uint32_t count,
                                             MinMaxScale scale, uint8_t* bytes) {
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
    const uint32_t first = FirstOf(f);
    if (first >= RoundedUp(count)) continue;
    uint32_t words[4];
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      words[lane] = first + lane < count ? EncodeMinMax(x.of[f][lane], scale) : 0;
    }
    *reinterpret_cast<uint32_t*>(bytes + first) = Packed(words);
  }
}

// The whole message of a piece of elements that were a T each. Shape: encoded [kHeaderBytes +
// RoundedUp(count)], at a multiple of 32. Requires: count > 0. Once in a kernel.
template <typename T>
__device__ __forceinline__ void EncodePiece(const Share<float>& x, uint32_t count,
                                            uint8_t* encoded) {
  __shared__ PieceScale scale;
  const MinMax of_block = RangeOfPiece(x, count);
  if (threadIdx.x == 0) {
    const MinMax range = Canonical(of_block);
    WriteHeader<T>(range, encoded);
    scale = PieceScaleOf(MinMaxScaleOf(range));
  }
  __syncthreads();
  if (scale.is_quick && count == kGpuPieceCount) {
    WriteWholePayload(x, scale.quick, encoded + kHeaderBytes);
  } else {
    WritePayload(x, count, scale.plain, encoded + kHeaderBytes);
  }
}

// What a thread has of a piece's bytes, four to a word; zeros where there are none. Shape: bytes
// [RoundedUp(count)], those behind a header.
struct ShareOfBytes {
  uint32_t words[kFours];
};
__device__ __forceinline__ ShareOfBytes LoadBytes(const uint8_t* bytes, uint32_t count) {
  ShareOfBytes share;
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
    const uint32_t first = FirstOf(f);
    const bool has_any = count == kGpuPieceCount || first < count;
    share.words[f] = has_any ? *reinterpret_cast<const uint32_t*>(bytes + first) : 0;
  }
  return share;
}

// Byte `lane` of a word, as QuickDecode takes it.
__device__ __forceinline__ float ByteOfIntegers(uint32_t word, int lane) {
  return __uint_as_float(__byte_perm(word, kBitsOfIntegers, 0x7440 | lane));
}

// Calls call(element, f, lane) with all four of each word, whether or not there is such an element.
template <typename T, typename F>
__device__ __forceinline__ void ForEachDecoded(const ShareOfBytes& share, const PieceScale& scale,
                                               F call) {
  if (scale.is_quick) {
    const QuickScale quick = scale.quick;
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
#pragma unroll
      for (int lane = 0; lane < 4; ++lane) {
        T element;
        FromFloat(QuickDecode(ByteOfIntegers(share.words[f], lane), quick), &element);
        call(element, f, lane);
      }
    }
    return;
  }
  const MinMaxScale plain = scale.plain;
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      T element;
      FromFloat(DecodeMinMax(static_cast<uint8_t>(share.words[f] >> 8 * lane), plain), &element);
      call(element, f, lane);
    }
  }
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
