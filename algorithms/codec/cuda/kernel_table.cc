#include "algorithms/codec/cuda/kernel_table.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

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

}  // namespace pelton::codec
