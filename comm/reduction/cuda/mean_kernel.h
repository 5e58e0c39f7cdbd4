// The C interface of the kernel that combines neighbours' tensors on a GPU. It lies in
// libpelton_kernels.so beside those of algorithms/codec/cuda/piece_kernels.h, which says why there
// is such a library.
#ifndef PELTON_COMM_REDUCTION_CUDA_MEAN_KERNEL_H_
#define PELTON_COMM_REDUCTION_CUDA_MEAN_KERNEL_H_

#include <cstdint>

struct CUstream_st;

extern "C" {

// A rank's own tensor and those of its sources, all in device memory and aligned to their elements.
// Threads: a value. Owns: nothing.
struct PeltonMean {
  const void* own;        // [count]
  const void* theirs;     // [source_count, stride_bytes]: [count] at the beginning of each row
  uint64_t stride_bytes;  // a multiple of 16
  int32_t source_count;
  int32_t dtype;          // a DType that IsCombinable
  const double* factors;  // [1 + source_count], in device memory: this rank's own, the sources'
  // [source_count], in device memory: what the sources' factors are multiplied by first; or null.
  const double* arrived;
  void* target;  // [count]; may be `own`, else it overlaps nothing
  uint64_t count;
};

// target = factors[0] * own + factors[1] * theirs[0] + ..., as WeightedMean (comm/reduction), bit
// by bit but for the payload of NaNs, in one pass over the memory. Enqueues on the stream, whose
// device is the current one, and returns CUDA's error code, 0 for success; nothing waits. Another
// dtype, a negative source_count and a stride of other than 16 bytes are an invalid value (1).
__attribute__((visibility("default"))) int pelton_weighted_mean(const PeltonMean* mean,
                                                                CUstream_st* stream);
}

#endif  // PELTON_COMM_REDUCTION_CUDA_MEAN_KERNEL_H_
