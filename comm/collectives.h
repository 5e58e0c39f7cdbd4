// The operations as typed functions: each names its kind and its tensors, and LaunchCollective
// checks them by the kind's row (core/pipeline/operation_kind.h) and launches.
#ifndef PELTON_COMM_COLLECTIVES_H_
#define PELTON_COMM_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "comm/communicator.h"
#include "comm/tags.h"
#include "core/base/ids.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/operation.h"

namespace pelton {

// Whether two pieces of memory have a byte in common.
bool Overlap(absl::Span<const std::byte> first, absl::Span<const std::byte> second);

// A flat tensor: `count` elements of `dtype` at `data`, in a region or in the private address
// space. Threads: a value. Owns: nothing.
struct Tensor {
  void* data = nullptr;
  uint64_t count = 0;
  DType dtype = DType::kFloat32;
};

absl::Span<const std::byte> BytesOf(const Tensor& tensor);

// What the typed functions of this folder refuse alike.
// InvalidArgument: "rank <the communicator's>: <what>".
absl::Status Refuse(const Communicator& communicator, absl::string_view what);
// Errors: InvalidArgument: the tensor has elements and no memory; names it.
absl::Status CheckData(const Communicator& communicator, absl::string_view name,
                       const Tensor& tensor);
// Errors: InvalidArgument: the two are of different types.
absl::Status CheckDTypes(const Communicator& communicator, const Tensor& source,
                         const Tensor& target);

// What a collective is called with; what its kind has no use for is not looked at. Threads: a
// value. Owns: nothing.
struct CollectiveCall {
  OperationKind kind = OperationKind::kBarrier;
  Tensor source = {};
  Tensor target = {};
  ReduceOp op = ReduceOp::kSum;
  Rank root = Rank(0);
  // What else must be the same on all ranks.
  BucketId bucket = kNoBucket;
  int32_t shape_mark = kNoShapeMark;  // see comm/tags.h
};

// All of these: Blocks: never; the tensors belong to the communicator until the completion is done
// (OWN-1). Errors: InvalidArgument naming the argument and its value, before anything is sent; else
// those of Launch. `n` below is the world size, `rank` this rank. `stream`: of the device whose
// memory the tensors are in, after which they may be read and written; null: the memory is ready.

// Of any kind whose scope is KindScope::kCollective.
absl::StatusOr<Completion> LaunchCollective(Communicator& communicator, const CollectiveCall& call,
                                            Stream* stream = nullptr);

// target[i] = op over all ranks of source[i]. Shape: both [count]; the same tensor for in place.
inline absl::StatusOr<Completion> AllReduce(Communicator& communicator, Tensor source,
                                            Tensor target, ReduceOp op) {
  return LaunchCollective(communicator, {OperationKind::kAllReduce, source, target, op});
}
// The same on `root` only; `target` is unused elsewhere. Shape: both [count].
inline absl::StatusOr<Completion> Reduce(Communicator& communicator, Tensor source, Tensor target,
                                         ReduceOp op, Rank root) {
  return LaunchCollective(communicator, {OperationKind::kReduce, source, target, op, root});
}
// target = chunk `rank` of the reduction. Shape: source [n * count], target [count].
inline absl::StatusOr<Completion> ReduceScatter(Communicator& communicator, Tensor source,
                                                Tensor target, ReduceOp op) {
  return LaunchCollective(communicator, {OperationKind::kReduceScatter, source, target, op});
}
// target = the ranks' sources, one after the other. Shape: source [count], target [n * count].
inline absl::StatusOr<Completion> AllGather(Communicator& communicator, Tensor source,
                                            Tensor target) {
  return LaunchCollective(communicator, {OperationKind::kAllGather, source, target});
}
// tensor = that of `root`. Shape: [count].
inline absl::StatusOr<Completion> Broadcast(Communicator& communicator, Tensor tensor, Rank root) {
  return LaunchCollective(communicator,
                          {.kind = OperationKind::kBroadcast, .target = tensor, .root = root});
}
// target = the ranks' sources, one after the other, on `root` only; `target` is unused elsewhere.
// Shape: source [count], target [n * count]; they must not overlap.
inline absl::StatusOr<Completion> Gather(Communicator& communicator, Tensor source, Tensor target,
                                         Rank root) {
  return LaunchCollective(
      communicator,
      {.kind = OperationKind::kGather, .source = source, .target = target, .root = root});
}
// target = chunk `rank` of the root's source; `source` is unused elsewhere. Shape: source
// [n * count], target [count]; they must not overlap.
inline absl::StatusOr<Completion> Scatter(Communicator& communicator, Tensor source, Tensor target,
                                          Rank root) {
  return LaunchCollective(
      communicator,
      {.kind = OperationKind::kScatter, .source = source, .target = target, .root = root});
}
// Chunk i of target = chunk `rank` of rank i's source. Shape: both [n * count]; they must not
// overlap.
inline absl::StatusOr<Completion> AllToAll(Communicator& communicator, Tensor source,
                                           Tensor target) {
  return LaunchCollective(communicator, {OperationKind::kAllToAll, source, target});
}
// Done when every rank has launched it.
inline absl::StatusOr<Completion> Barrier(Communicator& communicator) {
  return LaunchCollective(communicator, {OperationKind::kBarrier});
}

// To be matched by the peer's Recv of the same count, dtype and tag, in launch order. Shape:
// [count].
absl::StatusOr<Completion> Send(Communicator& communicator, Tensor source, Rank destination,
                                int32_t tag = 0, Stream* stream = nullptr);
absl::StatusOr<Completion> Recv(Communicator& communicator, Tensor target, Rank source,
                                int32_t tag = 0, Stream* stream = nullptr);

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_H_
