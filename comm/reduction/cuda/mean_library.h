// The kernel of mean_kernel.h, found when a communicator of GPUs asks for it.
#ifndef PELTON_COMM_REDUCTION_CUDA_MEAN_LIBRARY_H_
#define PELTON_COMM_REDUCTION_CUDA_MEAN_LIBRARY_H_

#include <string>

#include "absl/status/statusor.h"
#include "comm/reduction/cuda/mean_kernel.h"

namespace pelton {

using MeanKernel = decltype(&pelton_weighted_mean);

// In the library at `path`; else in the one that PELTON_KERNELS_LIBRARY names; else in
// libpelton_kernels.so beside this code. It is never unloaded. Threads: any. Errors: NotFound: none
// is there, as where Pelton was built without CUDA's compiler; Unimplemented: it is of an older
// build, without this kernel.
absl::StatusOr<MeanKernel> FindMeanKernel(const std::string& path = "");

}  // namespace pelton

#endif  // PELTON_COMM_REDUCTION_CUDA_MEAN_LIBRARY_H_
