// What transport/nccl adds to NCCL, measured in turns with it.
#ifndef PELTON_COMM_TRANSPORT_NCCL_GPU_CHECK_BANDWIDTH_H_
#define PELTON_COMM_TRANSPORT_NCCL_GPU_CHECK_BANDWIDTH_H_

#include <cstdint>
#include <ostream>

#include "comm/transport/nccl/nccl_library.h"
#include "core/memory/cuda/cuda_runtime.h"

namespace pelton {

// What is measured.
enum class Exchange : uint8_t {
  kAllReduce,
  kNeighbors,  // two ranks' average; of NCCL's own calls the send and the receive alone
};

// Threads: a value. Owns: nothing.
struct BandwidthOptions {
  Exchange exchange = Exchange::kAllReduce;
  int rank_count = 1;
  uint64_t largest_bytes = uint64_t{256} << 20;
  int operations = 20;  // that follow each other in one measurement
  int turns = 7;        // measurements of each, of which the median counts
};

// Operations of growing sizes: NCCL's own calls and ours, in turns, on the same device and stream.
// Writes a table to `out`; of allreduces also whether the aims are reached: 98 % of NCCL's
// bandwidth from 32 MiB on, at most 10 us added to one operation below. False if something failed;
// an aim that is missed is only said. Averages of neighbours need two ranks. Blocks: until it is
// done.
bool RunBandwidth(const BandwidthOptions& options, const nccl::NcclLibrary& library,
                  const cuda::CudaRuntime& runtime, std::ostream& out);

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_NCCL_GPU_CHECK_BANDWIDTH_H_
