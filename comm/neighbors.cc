#include "comm/neighbors.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/memory/device_queue.h"
#include "core/memory/region.h"

namespace pelton {
namespace {

absl::Status Refuse(const Communicator& communicator, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("rank ", communicator.rank().value(), ": ", what));
}

uint64_t BytesOf(const Tensor& tensor) { return tensor.count * SizeOf(tensor.dtype); }

bool Overlap(const Tensor& a, const Tensor& b) {
  const auto* const first = static_cast<const std::byte*>(a.data);
  const auto* const second = static_cast<const std::byte*>(b.data);
  return first < second + BytesOf(b) && second < first + BytesOf(a);
}

absl::Status CheckTensors(const Communicator& communicator, const Tensor& source,
                          const Tensor& target, uint64_t target_count) {
  if (source.dtype != target.dtype) {
    return Refuse(communicator, absl::StrCat("dtype: source is ", NameOf(source.dtype),
                                             ", target is ", NameOf(target.dtype)));
  }
  if (target.count != target_count) {
    return Refuse(communicator, absl::StrCat("count: target has ", target.count,
                                             " elements; it must have ", target_count));
  }
  for (const auto& [name, tensor] : {std::pair("source", source), std::pair("target", target)}) {
    if (tensor.data == nullptr && tensor.count > 0) {
      return Refuse(communicator, absl::StrCat(name, ": null data with count ", tensor.count));
    }
  }
  return absl::OkStatus();
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
  operation.set_source(Locate(source.data, BytesOf(source)));
  operation.set_target(Locate(target.data, BytesOf(target)));
  HostStream ready;
  return communicator.Launch(operation, stream == nullptr ? ready : *stream);
}

}  // namespace

absl::StatusOr<Completion> NeighborAllReduce(Communicator& communicator, Tensor source,
                                             Tensor target, const WeightTable& table,
                                             const EdgeLabel& label, Stream* stream) {
  RETURN_IF_ERROR(CheckTensors(communicator, source, target, source.count));
  if (source.data != target.data && Overlap(source, target)) {
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
  if (Overlap(source, target)) {
    return Refuse(communicator, "source, target: they overlap; pass a copy of source");
  }
  return LaunchOn(communicator, OperationKind::kNeighborAllGather, source, target, table, label,
                  stream);
}

}  // namespace pelton
