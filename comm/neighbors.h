// The neighbour operations as typed functions, as collectives.h has the others.
#ifndef PELTON_COMM_NEIGHBORS_H_
#define PELTON_COMM_NEIGHBORS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/weight_table.h"

namespace pelton {

// Threads: a value. Owns: nothing.
struct EdgeLabel {
  int32_t tag = 0;              // in [0, kNeighborTags)
  BucketId bucket = kNoBucket;  // must be the same at both ends, for operations that have more
                                // names than tags
  int32_t shape_mark = 0;       // see comm/tags.h; the same at both ends
};

// Both: on a communicator that runs them (collectives/neighbor_communicator.h), between ranks whose
// tables say the same of each edge. The two ends of an edge match by `label.tag`, in launch order.
// Blocks: never; the tensors belong to the communicator until the completion is done (OWN-1).
// Errors: InvalidArgument naming the argument and its value, before anything is sent; else those of
// Launch.
// `stream`: of the device whose memory the tensors are in, after which they may be read and
// written; null: the memory is ready.

// target = own * source + the sum over the sources, ascending, of weight * theirs (see
// WeightTable), in float32 for 16 bits; where all weights are 1 / n, the sum divided by n. Shape:
// both [count]; the same tensor for in place.
absl::StatusOr<Completion> NeighborAllReduce(Communicator& communicator, Tensor source,
                                             Tensor target, const WeightTable& table,
                                             const EdgeLabel& label = {}, Stream* stream = nullptr);
// target = the sources' tensors, ascending, one after the other. Shape: source [count], target as
// many as the table says; they must not overlap.
absl::StatusOr<Completion> NeighborAllGather(Communicator& communicator, Tensor source,
                                             Tensor target, const WeightTable& table,
                                             const EdgeLabel& label = {}, Stream* stream = nullptr);

}  // namespace pelton

#endif  // PELTON_COMM_NEIGHBORS_H_
