// The kernel that communicators of GPUs look up, by the CPU's code.
#include "comm/reduction/cuda/mean_kernel.h"
#include "comm/reduction/cuda/mean_on_host.h"
#include "comm/transport/nccl/stand_in/controls.h"
#include "comm/transport/nccl/stand_in/streams.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;

}  // namespace

int pelton_weighted_mean(const PeltonMean* mean, CUstream_st* stream) {
  using pelton::stand_in::Controls;
  if (const int fault = Controls::Get().FaultOf("pelton_weighted_mean")) return fault;
  if (!pelton::IsValid(*mean)) return kInvalidValue;
  pelton::stand_in::StreamOf(stream).Push([mean = *mean] { pelton::RunOnHost(mean); });
  return kSuccess;
}
