// One operation from its launch to its completion.
#ifndef PELTON_COMM_TRANSPORT_NCCL_FLIGHT_H_
#define PELTON_COMM_TRANSPORT_NCCL_FLIGHT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "comm/transport/nccl/neighbor_edges.h"
#include "comm/transport/nccl/operation_map.h"
#include "comm/transport/nccl/posts.h"
#include "comm/transport/operation_check.h"
#include "core/memory/cuda/cuda_runtime.h"

namespace pelton::nccl {

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
