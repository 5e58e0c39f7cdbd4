#include "comm/collectives.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "comm/overlap.h"
#include "comm/reduction/reducible.h"
#include "core/base/status.h"

namespace pelton {
namespace {

absl::Status Refuse(const Communicator& communicator, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("rank ", communicator.rank().value(), ": ", what));
}

absl::Status CheckTensor(const Communicator& communicator, absl::string_view name, Tensor tensor) {
  if (tensor.data == nullptr && tensor.count > 0) {
    return Refuse(communicator, absl::StrCat(name, ": null data with count ", tensor.count));
  }
  return absl::OkStatus();
}

absl::Span<const std::byte> BytesOf(Tensor tensor) {
  return {static_cast<const std::byte*>(tensor.data), tensor.count * SizeOf(tensor.dtype)};
}

absl::Status CheckOverlap(const Communicator& communicator, OperationKind kind, Tensor source,
                          Tensor target) {
  if (!Clash(kind, communicator.rank(), BytesOf(source), BytesOf(target))) return absl::OkStatus();
  return Refuse(communicator,
                absl::StrCat("source, target: ", source.count, " elements of source and ",
                             target.count, " of target share memory; ", NameOf(kind), " ",
                             InPlaceFormOf(kind), "; pass a copy of source"));
}

// Chunks of `kind` in the source and in the target.
struct Chunks {
  uint64_t in_source = 1;
  uint64_t in_target = 1;
};

absl::Status CheckPair(const Communicator& communicator, OperationKind kind, Tensor source,
                       Tensor target, Chunks chunks = {}) {
  RETURN_IF_ERROR(CheckTensor(communicator, "source", source));
  RETURN_IF_ERROR(CheckTensor(communicator, "target", target));
  if (source.dtype != target.dtype) {
    return Refuse(communicator, absl::StrCat("dtype: source is ", NameOf(source.dtype),
                                             ", target is ", NameOf(target.dtype)));
  }
  if (source.count * chunks.in_target != target.count * chunks.in_source) {
    return Refuse(
        communicator,
        absl::StrCat("count: source has ", source.count, " elements, target ", target.count,
                     "; the ratio must be ", chunks.in_source, " : ", chunks.in_target));
  }
  return CheckOverlap(communicator, kind, source, target);
}

absl::Status CheckRank(const Communicator& communicator, absl::string_view name, Rank rank) {
  if (rank.value() < 0 || rank.value() >= communicator.world_size().value()) {
    return Refuse(communicator, absl::StrCat(name, ": ", rank.value(), " is not in [0, ",
                                             communicator.world_size().value(), ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckReduction(const Communicator& communicator, ReduceOp op, DType dtype) {
  return Annotate(CheckReducible(dtype, op), absl::StrCat("rank ", communicator.rank().value()));
}

Location LocationOf(Tensor tensor) {
  return Locate(tensor.data, tensor.count * SizeOf(tensor.dtype));
}

absl::StatusOr<Completion> LaunchOn(Communicator& communicator, const Operation& operation) {
  HostStream stream;
  return communicator.Launch(operation, stream);
}

Operation Between(OperationKind kind, Tensor source, Tensor target, uint64_t count) {
  Operation operation;
  operation.kind = kind;
  operation.dtype = source.dtype;
  operation.count = count;
  operation.set_source(LocationOf(source));
  operation.set_target(LocationOf(target));
  return operation;
}

uint64_t RanksOf(const Communicator& communicator) {
  return static_cast<uint64_t>(communicator.world_size().value());
}

}  // namespace

absl::StatusOr<Completion> AllReduce(Communicator& communicator, Tensor source, Tensor target,
                                     ReduceOp op) {
  RETURN_IF_ERROR(CheckPair(communicator, OperationKind::kAllReduce, source, target));
  RETURN_IF_ERROR(CheckReduction(communicator, op, source.dtype));
  Operation operation = Between(OperationKind::kAllReduce, source, target, source.count);
  operation.reduce_op = op;
  return LaunchOn(communicator, operation);
}

absl::StatusOr<Completion> Reduce(Communicator& communicator, Tensor source, Tensor target,
                                  ReduceOp op, Rank root) {
  RETURN_IF_ERROR(CheckRank(communicator, "root", root));
  RETURN_IF_ERROR(CheckReduction(communicator, op, source.dtype));
  if (communicator.rank() == root) {
    RETURN_IF_ERROR(CheckPair(communicator, OperationKind::kReduce, source, target));
  } else {
    RETURN_IF_ERROR(CheckTensor(communicator, "source", source));
    target = source;
  }
  Operation operation = Between(OperationKind::kReduce, source, target, source.count);
  operation.reduce_op = op;
  operation.peer = root.value();
  return LaunchOn(communicator, operation);
}

absl::StatusOr<Completion> ReduceScatter(Communicator& communicator, Tensor source, Tensor target,
                                         ReduceOp op) {
  RETURN_IF_ERROR(CheckPair(communicator, OperationKind::kReduceScatter, source, target,
                            {.in_source = RanksOf(communicator)}));
  RETURN_IF_ERROR(CheckReduction(communicator, op, source.dtype));
  Operation operation = Between(OperationKind::kReduceScatter, source, target, target.count);
  operation.reduce_op = op;
  return LaunchOn(communicator, operation);
}

absl::StatusOr<Completion> AllGather(Communicator& communicator, Tensor source, Tensor target) {
  RETURN_IF_ERROR(CheckPair(communicator, OperationKind::kAllGather, source, target,
                            {.in_target = RanksOf(communicator)}));
  return LaunchOn(communicator, Between(OperationKind::kAllGather, source, target, source.count));
}

absl::StatusOr<Completion> Broadcast(Communicator& communicator, Tensor tensor, Rank root) {
  RETURN_IF_ERROR(CheckRank(communicator, "root", root));
  RETURN_IF_ERROR(CheckTensor(communicator, "tensor", tensor));
  Operation operation = Between(OperationKind::kBroadcast, tensor, tensor, tensor.count);
  operation.peer = root.value();
  return LaunchOn(communicator, operation);
}

absl::StatusOr<Completion> Gather(Communicator& communicator, Tensor source, Tensor target,
                                  Rank root) {
  RETURN_IF_ERROR(CheckRank(communicator, "root", root));
  if (communicator.rank() == root) {
    RETURN_IF_ERROR(CheckPair(communicator, OperationKind::kGather, source, target,
                              {.in_target = RanksOf(communicator)}));
  } else {
    RETURN_IF_ERROR(CheckTensor(communicator, "source", source));
    target = source;
  }
  Operation operation = Between(OperationKind::kGather, source, target, source.count);
  operation.peer = root.value();
  return LaunchOn(communicator, operation);
}

absl::StatusOr<Completion> Scatter(Communicator& communicator, Tensor source, Tensor target,
                                   Rank root) {
  RETURN_IF_ERROR(CheckRank(communicator, "root", root));
  if (communicator.rank() == root) {
    RETURN_IF_ERROR(CheckPair(communicator, OperationKind::kScatter, source, target,
                              {.in_source = RanksOf(communicator)}));
  } else {
    RETURN_IF_ERROR(CheckTensor(communicator, "target", target));
    source = target;
  }
  Operation operation = Between(OperationKind::kScatter, source, target, target.count);
  operation.peer = root.value();
  return LaunchOn(communicator, operation);
}

absl::StatusOr<Completion> AllToAll(Communicator& communicator, Tensor source, Tensor target) {
  RETURN_IF_ERROR(CheckPair(communicator, OperationKind::kAllToAll, source, target));
  const uint64_t ranks = RanksOf(communicator);
  if (source.count % ranks != 0) {
    return Refuse(communicator, absl::StrCat("count: ", source.count, " elements are not ", ranks,
                                             " equal chunks"));
  }
  return LaunchOn(communicator,
                  Between(OperationKind::kAllToAll, source, target, source.count / ranks));
}

absl::StatusOr<Completion> Send(Communicator& communicator, Tensor source, Rank destination,
                                int32_t tag) {
  RETURN_IF_ERROR(CheckRank(communicator, "destination", destination));
  RETURN_IF_ERROR(CheckTensor(communicator, "source", source));
  Operation operation = Between(OperationKind::kSend, source, source, source.count);
  operation.peer = destination.value();
  operation.tag = tag;
  return LaunchOn(communicator, operation);
}

absl::StatusOr<Completion> Recv(Communicator& communicator, Tensor target, Rank source,
                                int32_t tag) {
  RETURN_IF_ERROR(CheckRank(communicator, "source", source));
  RETURN_IF_ERROR(CheckTensor(communicator, "target", target));
  Operation operation = Between(OperationKind::kRecv, target, target, target.count);
  operation.peer = source.value();
  operation.tag = tag;
  return LaunchOn(communicator, operation);
}

absl::StatusOr<Completion> Barrier(Communicator& communicator) {
  return LaunchOn(communicator, Operation{});
}

}  // namespace pelton
