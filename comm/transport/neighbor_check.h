// What a neighbour operation is refused for before anything is sent: one place, one wording.
#ifndef PELTON_COMM_TRANSPORT_NEIGHBOR_CHECK_H_
#define PELTON_COMM_TRANSPORT_NEIGHBOR_CHECK_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/operation_check.h"
#include "core/base/ids.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/weight_table.h"

namespace pelton {

// What a neighbour operation works with. Threads: a value. Owns: a share of its table.
struct NeighborOperation {
  std::shared_ptr<const WeightTable> table;  // shared: see WeightTable::Create
  OperationMemory memory;
};

// Finds both and checks every field of `operation`, of a neighbour kind. Errors: InvalidArgument:
// names the rank, the field and its value.
absl::StatusOr<NeighborOperation> CheckNeighborOperation(const Operation& operation, Rank rank,
                                                         WorldSize world_size);
// The same of a transport of the host's memory. Errors: also InvalidArgument: the stream is a
// device's.
absl::StatusOr<NeighborOperation> CheckNeighborOperation(const Operation& operation,
                                                         const Stream& stream, Rank rank,
                                                         WorldSize world_size);

// Marks communicators that run neighbour operations by themselves.
// A communicator that is one takes kNeighborAllReduce and kNeighborAllGather in Launch, with the
// results, errors and guarantees of collectives/neighbor_communicator.h, which then adds nothing;
// one that keeps less of EDGE-1, such as NCCL's, says so itself.
// Threads: any. Owns: nothing.
class NativeNeighbors {
 public:
  virtual ~NativeNeighbors() = default;
};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_NEIGHBOR_CHECK_H_
