// The kernel's work by the CPU's code, for the libraries that stand in for it in tests.
#ifndef PELTON_COMM_REDUCTION_CUDA_MEAN_ON_HOST_H_
#define PELTON_COMM_REDUCTION_CUDA_MEAN_ON_HOST_H_

#include "comm/reduction/cuda/mean_kernel.h"

namespace pelton {

// Whether pelton_weighted_mean takes it.
bool IsValid(const PeltonMean& mean);
// What pelton_weighted_mean enqueues, with all of it in this process's memory. Requires: IsValid.
// Blocks: while it computes.
void RunOnHost(const PeltonMean& mean);

}  // namespace pelton

#endif  // PELTON_COMM_REDUCTION_CUDA_MEAN_ON_HOST_H_
