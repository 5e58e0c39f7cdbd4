// The functions of piece_kernels.h as they are found in a library.
#ifndef PELTON_ALGORITHMS_CODEC_CUDA_KERNEL_TABLE_H_
#define PELTON_ALGORITHMS_CODEC_CUDA_KERNEL_TABLE_H_

#include "absl/status/statusor.h"
#include "algorithms/codec/cuda/piece_kernels.h"
#include "core/memory/cuda/shared_library.h"

namespace pelton::codec {

// Threads: a value. Owns: nothing.
struct KernelTable {
  decltype(&pelton_kernels_version) version;
  decltype(&pelton_encode_pieces) encode_pieces;
  decltype(&pelton_decode_pieces) decode_pieces;
  decltype(&pelton_merge_pieces) merge_pieces;
};

// Errors: FailedPrecondition: it is of another version than the header; Unimplemented: names the
// function that it lacks.
absl::StatusOr<KernelTable> BindKernels(const SharedLibrary& library);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_CUDA_KERNEL_TABLE_H_
