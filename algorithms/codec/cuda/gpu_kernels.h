// The kernels of libpelton_kernels.so, found when a model on a GPU asks for them.
#ifndef PELTON_ALGORITHMS_CODEC_CUDA_GPU_KERNELS_H_
#define PELTON_ALGORITHMS_CODEC_CUDA_GPU_KERNELS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "algorithms/codec/codec.h"
#include "algorithms/codec/cuda/piece_kernels.h"
#include "core/memory/cuda/shared_library.h"

namespace pelton::codec {

// The functions of piece_kernels.h as they are found in a library. Threads: a value. Owns: nothing.
struct KernelTable {
  decltype(&pelton_kernels_version) version;
  decltype(&pelton_encode_pieces) encode_pieces;
  decltype(&pelton_decode_pieces) decode_pieces;
  decltype(&pelton_merge_pieces) merge_pieces;
};

// Errors: FailedPrecondition: it is of another version than the header; Unimplemented: names the
// function that it lacks.
absl::StatusOr<KernelTable> BindKernels(const SharedLibrary& library);

// MinMaxUInt8 on a GPU. Threads: any. Owns: nothing: the library is never unloaded.
class GpuKernels final : public ExchangeKernels {
 public:
  // The library at `path`; else the one that PELTON_KERNELS_LIBRARY names; else
  // libpelton_kernels.so beside this code. Errors: NotFound: none is there; FailedPrecondition: one
  // of another version; Unimplemented: names the function that it lacks.
  static absl::StatusOr<std::unique_ptr<const GpuKernels>> Load(const std::string& path = "");
  // The process's, loaded at the first call; null if there is none, as where it was built without
  // CUDA's compiler.
  static const GpuKernels* Get();

  absl::Status Encode(const std::byte* source, Elements elements, std::byte* encoded,
                      Stream& stream) const override;
  absl::Status Decode(const std::byte* encoded, Elements elements, std::byte* target,
                      Stream& stream) const override;
  absl::Status Merge(const RankMessages& versions, Elements elements, uint64_t divisor,
                     std::byte* encoded, Stream& stream) const override;

 private:
  explicit GpuKernels(const KernelTable& table) : table_(table) {}

  KernelTable table_;
};

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_CUDA_GPU_KERNELS_H_
