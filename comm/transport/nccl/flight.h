// One operation from its launch to its completion; of one between neighbours also its edges, as
// records that their two ends compare.
#ifndef PELTON_COMM_TRANSPORT_NCCL_FLIGHT_H_
#define PELTON_COMM_TRANSPORT_NCCL_FLIGHT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "comm/reduction/cuda/mean_library.h"
#include "comm/transport/nccl/operation_map.h"
#include "comm/transport/nccl/posts.h"
#include "comm/transport/operation_check.h"
#include "core/base/ids.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/weight_table.h"

namespace pelton::nccl {

// What an operation between neighbours has beside that of others.

// Where on the device an average keeps what it needs. Threads: a value. Owns: nothing.
struct NeighborPlace {
  double* factors = nullptr;     // [1 + sources]: this rank's own, and its sources'
  double* leaving = nullptr;     // [destinations]: the weights that travel with the tensor
  double* arrived = nullptr;     // [sources]: those that have come
  std::byte* tensors = nullptr;  // [sources, stride_bytes]
  size_t stride_bytes = 0;
};

// Threads: as Flight. Owns: its factors, which the device reads until the operation is done.
struct NeighborPart {
  std::shared_ptr<const WeightTable> table;  // shared: see WeightTable::Create; null for others
  MeanKernel kernel = nullptr;               // of an average
  std::vector<double> factors;  // as the beginning of NeighborPlace, one behind the other
  NeighborPlace place;
};

// Puts one record for each destination and source into `edges`, by the distance between the two
// ranks, from the sender upward: both ends of each edge have it at the same distance, so that ranks
// whose hosts take few messages at once do not wait for one another in a circle.
// Requires: `operation` is as its caller made it, checked.
void FillEdges(const Operation& operation, const WeightTable& table, Rank rank,
               WorldSize world_size, std::vector<EdgePost>& edges);

// Threads: that of its communicator. Owns: its post; its events are the pool's.
struct Flight {
  uint64_t ticket = 0;
  Operation operation;
  OperationMemory memory;
  Mapping mapping;
  Post post;
  NeighborPart neighbor;
  // Why it has no result although it runs: the tensors differ at an edge, and the other edges are
  // served.
  absl::Status difference;
  // The caller's stream, if it has one, and where its part of the work ended at Launch.
  bool has_stream = false;
  cuda::StreamHandle stream = nullptr;
  cuda::EventHandle ready = nullptr;
  cuda::EventHandle finished = nullptr;  // once it is on a stream of the device
  bool agreed = false;
  bool is_done = true;
  absl::Status status;
};

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_FLIGHT_H_
