#include "algorithms/codec/cuda/kernel_table.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton::codec {
namespace {

template <typename Function>
absl::Status Bind(const SharedLibrary& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library.Symbol(name));
  if (function != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("kernels ", library.path(), " have no ", name));
}

}  // namespace

absl::StatusOr<KernelTable> BindKernels(const SharedLibrary& library) {
  KernelTable table;
  RETURN_IF_ERROR(Bind(library, "pelton_kernels_version", table.version));
  if (table.version() != PELTON_KERNELS_VERSION) {
    return absl::FailedPreconditionError(absl::StrCat("GPU kernels ", library.path(),
                                                      " are of version ", table.version(),
                                                      ", not of ", PELTON_KERNELS_VERSION));
  }
  RETURN_IF_ERROR(Bind(library, "pelton_encode_pieces", table.encode_pieces));
  RETURN_IF_ERROR(Bind(library, "pelton_decode_pieces", table.decode_pieces));
  RETURN_IF_ERROR(Bind(library, "pelton_merge_pieces", table.merge_pieces));
  return table;
}

}  // namespace pelton::codec
