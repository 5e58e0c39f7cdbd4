#include "algorithms/codec/cuda/gpu_kernels.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "algorithms/codec/convert.h"
#include "algorithms/codec/cuda/piece_kernels.h"
#include "core/base/status.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/memory/cuda/shared_library.h"

namespace pelton::codec {
absl::StatusOr<KernelTable> BindKernels(const SharedLibrary& library) {
  KernelTable table;
  RETURN_IF_ERROR(library.Bind("pelton_kernels_version", table.version));
  if (table.version() != PELTON_KERNELS_VERSION) {
    return absl::FailedPreconditionError(absl::StrCat("GPU kernels ", library.path(),
                                                      " are of version ", table.version(),
                                                      ", not of ", PELTON_KERNELS_VERSION));
  }
  RETURN_IF_ERROR(library.Bind("pelton_encode_pieces", table.encode_pieces));
  RETURN_IF_ERROR(library.Bind("pelton_decode_pieces", table.decode_pieces));
  RETURN_IF_ERROR(library.Bind("pelton_merge_pieces", table.merge_pieces));
  return table;
}

namespace {

absl::StatusOr<CUstream_st*> HandleOf(const Stream& stream, DType dtype) {
  if (!IsConvertible(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("min_max_uint8 does not take ", NameOf(dtype)));
  }
  if (stream.device() != DeviceKind::kCuda) {
    return absl::InvalidArgumentError(
        absl::StrCat("kernels of cuda on a stream of the ", NameOf(stream.device())));
  }
  return static_cast<const CudaStream&>(stream).handle();
}

absl::Status ToStatus(int error, absl::string_view call) {
  if (error == cuda::kSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": CUDA's error ", error));
}

PeltonMessages Messages(const RankMessages& messages) {
  return {messages.first, messages.stride_bytes, messages.count};
}

}  // namespace

absl::StatusOr<std::unique_ptr<const GpuKernels>> GpuKernels::Load(const std::string& path) {
  absl::StatusOr<SharedLibrary> library = SharedLibrary::Find(KernelsSearch(path));
  if (!library.ok()) return Annotate(library.status(), "GPU kernels");
  ASSIGN_OR_RETURN(const KernelTable table, BindKernels(*library));
  return std::unique_ptr<const GpuKernels>(new GpuKernels(table));
}

const GpuKernels* GpuKernels::Get() {
  static const auto* const found = new absl::StatusOr<std::unique_ptr<const GpuKernels>>(Load());
  return found->ok() ? (*found)->get() : nullptr;
}

absl::Status GpuKernels::Encode(const std::byte* source, Elements elements, std::byte* encoded,
                                Stream& stream) const {
  ASSIGN_OR_RETURN(CUstream_st* const handle, HandleOf(stream, elements.dtype));
  const auto dtype = static_cast<int32_t>(elements.dtype);
  return ToStatus(table_.encode_pieces(source, elements.count, dtype, encoded, handle),
                  "pelton_encode_pieces");
}

absl::Status GpuKernels::Decode(const std::byte* encoded, Elements elements, std::byte* target,
                                Stream& stream) const {
  ASSIGN_OR_RETURN(CUstream_st* const handle, HandleOf(stream, elements.dtype));
  const auto dtype = static_cast<int32_t>(elements.dtype);
  return ToStatus(table_.decode_pieces(encoded, elements.count, dtype, target, handle),
                  "pelton_decode_pieces");
}

absl::Status GpuKernels::Merge(const RankMessages& versions, Elements elements, uint64_t divisor,
                               std::byte* encoded, Stream& stream) const {
  ASSIGN_OR_RETURN(CUstream_st* const handle, HandleOf(stream, elements.dtype));
  const auto dtype = static_cast<int32_t>(elements.dtype);
  const PeltonMessages from = Messages(versions);
  return ToStatus(table_.merge_pieces(&from, elements.count, dtype, divisor, encoded, handle),
                  "pelton_merge_pieces");
}

}  // namespace pelton::codec
