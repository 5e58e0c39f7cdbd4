// What the suite of piece_kernels.h runs on.
#ifndef PELTON_ALGORITHMS_CODEC_CUDA_PIECE_KERNELS_FIXTURE_H_
#define PELTON_ALGORITHMS_CODEC_CUDA_PIECE_KERNELS_FIXTURE_H_

#include <cstddef>

#include "algorithms/codec/cuda/gpu_kernels.h"

namespace pelton::codec {

// The kernels and the CUDA runtime whose streams they take. Threads: a value. Owns: nothing.
struct PieceDevice {
  KernelTable kernels;
  int (*allocate)(void** memory, size_t size_bytes);
  int (*release)(void* memory);
  // From the host's memory or the device's to either.
  int (*copy)(void* target, const void* source, size_t size_bytes);
  // Waits for the default stream.
  int (*synchronize)();
};

// Each program that runs the suite has its own.
const PieceDevice& DeviceUnderTest();

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_CUDA_PIECE_KERNELS_FIXTURE_H_
