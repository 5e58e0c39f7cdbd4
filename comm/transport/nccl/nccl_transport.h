// The transport between GPUs.
#ifndef PELTON_COMM_TRANSPORT_NCCL_NCCL_TRANSPORT_H_
#define PELTON_COMM_TRANSPORT_NCCL_NCCL_TRANSPORT_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "comm/transport/transport.h"

namespace pelton {

// Threads: a value. Owns: its strings.
struct NcclOptions {
  std::string nccl_path;      // as NcclLibrary::Load's
  std::string cudart_path;    // as CudaRuntime::Load's
  std::optional<int> device;  // the thread's current one, if not given
  // An operation goes to the device only when all ranks are known to have launched the same. For
  // finding where they differ: each costs a round trip between the hosts. The same on all ranks.
  bool agree_first = false;
  std::string kernels_path = {};  // as FindMeanKernel's (comm/reduction/cuda)

  // `agree_first` from PELTON_NCCL_AGREE_FIRST=1; the libraries by their own variables.
  static NcclOptions FromEnvironment();
};

// One transport per process and GPU; `options.host` carries what the ranks say to each other.
// Registered as "nccl", with the environment's options. Blocks: never for long: ranks meet in Open.
// Errors: FailedPrecondition: no GPU, with CUDA's words, or NCCL_LAUNCH_ORDER_IMPLICIT is set;
// NotFound, Unimplemented: no library that can be used; InvalidArgument: no host transport, or no
// such device.
absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(const TransportOptions& options,
                                                             const NcclOptions& nccl_options);

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_NCCL_NCCL_TRANSPORT_H_
