// The operations as typed functions: each builds an Operation, checks its arguments and launches
// it.
#ifndef PELTON_COMM_COLLECTIVES_H_
#define PELTON_COMM_COLLECTIVES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace pelton {

// A flat tensor: `count` elements of `dtype` at `data`, in a region or in the private address
// space. Threads: a value. Owns: nothing.
struct Tensor {
  void* data = nullptr;
  uint64_t count = 0;
  DType dtype = DType::kFloat32;
};

// All of these: Blocks: never; the tensors belong to the communicator until the completion is done
// (OWN-1). Errors: InvalidArgument naming the argument and its value, before anything is sent; else
// those of Launch. `n` below is the world size, `rank` this rank.

// target[i] = op over all ranks of source[i]. Shape: both [count]; the same tensor for in place.
absl::StatusOr<Completion> AllReduce(Communicator& communicator, Tensor source, Tensor target,
                                     ReduceOp op);
// The same on `root` only; `target` is unused elsewhere. Shape: both [count].
absl::StatusOr<Completion> Reduce(Communicator& communicator, Tensor source, Tensor target,
                                  ReduceOp op, Rank root);
// target = chunk `rank` of the reduction. Shape: source [n * count], target [count].
absl::StatusOr<Completion> ReduceScatter(Communicator& communicator, Tensor source, Tensor target,
                                         ReduceOp op);
// target = the ranks' sources, one after the other. Shape: source [count], target [n * count].
absl::StatusOr<Completion> AllGather(Communicator& communicator, Tensor source, Tensor target);
// tensor = that of `root`. Shape: [count].
absl::StatusOr<Completion> Broadcast(Communicator& communicator, Tensor tensor, Rank root);
// target = the ranks' sources, one after the other, on `root` only; `target` is unused elsewhere.
// Shape: source [count], target [n * count]; they must not overlap.
absl::StatusOr<Completion> Gather(Communicator& communicator, Tensor source, Tensor target,
                                  Rank root);
// target = chunk `rank` of the root's source; `source` is unused elsewhere. Shape: source
// [n * count], target [count]; they must not overlap.
absl::StatusOr<Completion> Scatter(Communicator& communicator, Tensor source, Tensor target,
                                   Rank root);
// Chunk i of target = chunk `rank` of rank i's source. Shape: both [n * count]; they must not
// overlap.
absl::StatusOr<Completion> AllToAll(Communicator& communicator, Tensor source, Tensor target);
// To be matched by the peer's Recv of the same count, dtype and tag, in launch order. Shape:
// [count].
absl::StatusOr<Completion> Send(Communicator& communicator, Tensor source, Rank destination,
                                int32_t tag = 0);
absl::StatusOr<Completion> Recv(Communicator& communicator, Tensor target, Rank source,
                                int32_t tag = 0);
// Done when every rank has launched it.
absl::StatusOr<Completion> Barrier(Communicator& communicator);

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_H_
