#include "comm/reduction/cuda/mean_library.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/memory/cuda/shared_library.h"

namespace pelton {

absl::StatusOr<MeanKernel> FindMeanKernel(const std::string& path) {
  absl::StatusOr<SharedLibrary> library = SharedLibrary::Find(KernelsSearch(path));
  if (!library.ok()) return Annotate(library.status(), "kernels for GPUs");
  const auto kernel = reinterpret_cast<MeanKernel>(library->Symbol("pelton_weighted_mean"));
  if (kernel != nullptr) return kernel;
  return absl::UnimplementedError(
      absl::StrCat("kernels ", library->path(), " have no pelton_weighted_mean; build them anew"));
}

}  // namespace pelton
