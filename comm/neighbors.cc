#include "comm/neighbors.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/memory/device_queue.h"
#include "core/memory/region.h"

namespace pelton {
namespace {

absl::Status CheckTensors(const Communicator& communicator, const Tensor& source,
                          const Tensor& target, uint64_t target_count) {
  RETURN_IF_ERROR(CheckDTypes(communicator, source, target));
  if (target.count != target_count) {
    return Refuse(communicator, absl::StrCat("count: target has ", target.count,
                                             " elements; it must have ", target_count));
  }
  RETURN_IF_ERROR(CheckData(communicator, "source", source));
  return CheckData(communicator, "target", target);
}

absl::StatusOr<Completion> LaunchOn(Communicator& communicator, OperationKind kind, Tensor source,
                                    Tensor target, const WeightTable& table, const EdgeLabel& label,
                                    Stream* stream) {
  Operation operation;
  operation.kind = kind;
  operation.dtype = source.dtype;
  operation.count = source.count;
  operation.peer = table.id();
  operation.tag = label.tag;
  operation.bucket = label.bucket;
  operation.sequence = static_cast<uint64_t>(label.shape_mark);
  operation.set_source(Locate(source.data, BytesOf(source).size()));
  operation.set_target(Locate(target.data, BytesOf(target).size()));
  HostStream ready;
  return communicator.Launch(operation, stream == nullptr ? ready : *stream);
}

}  // namespace

absl::StatusOr<Completion> NeighborAllReduce(Communicator& communicator, Tensor source,
                                             Tensor target, const WeightTable& table,
                                             const EdgeLabel& label, Stream* stream) {
  RETURN_IF_ERROR(CheckTensors(communicator, source, target, source.count));
  if (source.data != target.data && Overlap(BytesOf(source), BytesOf(target))) {
    return Refuse(
        communicator,
        "source, target: they overlap in part; pass the same tensor, or a copy of source");
  }
  return LaunchOn(communicator, OperationKind::kNeighborAllReduce, source, target, table, label,
                  stream);
}

absl::StatusOr<Completion> NeighborAllGather(Communicator& communicator, Tensor source,
                                             Tensor target, const WeightTable& table,
                                             const EdgeLabel& label, Stream* stream) {
  RETURN_IF_ERROR(CheckTensors(communicator, source, target, table.TotalCount(source.count)));
  if (Overlap(BytesOf(source), BytesOf(target))) {
    return Refuse(communicator, "source, target: they overlap; pass a copy of source");
  }
  return LaunchOn(communicator, OperationKind::kNeighborAllGather, source, target, table, label,
                  stream);
}

}  // namespace pelton
