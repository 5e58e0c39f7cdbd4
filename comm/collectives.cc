#include "comm/collectives.h"

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/reduction/reducible.h"
#include "core/base/status.h"

namespace pelton {
namespace {
using Bytes = absl::Span<const std::byte>;
}  // namespace

bool Overlap(Bytes first, Bytes second) {
  if (first.empty() || second.empty()) return false;
  const std::less<> before;  // also for pointers into different objects
  return before(first.data(), second.data() + second.size()) &&
         before(second.data(), first.data() + first.size());
}

Bytes BytesOf(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data), tensor.count * SizeOf(tensor.dtype)};
}

absl::Status Refuse(const Communicator& communicator, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("rank ", communicator.rank().value(), ": ", what));
}

absl::Status CheckData(const Communicator& communicator, absl::string_view name,
                       const Tensor& tensor) {
  if (tensor.data != nullptr || tensor.count == 0) return absl::OkStatus();
  return Refuse(communicator, absl::StrCat(name, ": null data with count ", tensor.count));
}

absl::Status CheckDTypes(const Communicator& communicator, const Tensor& source,
                         const Tensor& target) {
  if (source.dtype == target.dtype) return absl::OkStatus();
  return Refuse(communicator, absl::StrCat("dtype: source is ", NameOf(source.dtype),
                                           ", target is ", NameOf(target.dtype)));
}

namespace {

// Where `part` lies as number `rank` of the equal parts of `whole`.
bool IsChunk(Bytes part, Bytes whole, Rank rank) {
  return part.data() == whole.data() + static_cast<size_t>(rank.value()) * part.size();
}

// Whether `source` and `target` share memory in another way than the collective's own form of "in
// place" on `rank`: then it would read what it has already overwritten.
bool Clash(OperationKind kind, Rank rank, Bytes source, Bytes target) {
  if (!Overlap(source, target)) return false;
  switch (TraitsOf(kind).in_place) {
    case InPlaceForm::kSame:
      return source.data() != target.data();
    case InPlaceForm::kTargetIsOwnChunk:
      return !IsChunk(target, source, rank);
    case InPlaceForm::kSourceIsOwnChunk:
      return !IsChunk(source, target, rank);
    case InPlaceForm::kNever:
      break;
  }
  return true;
}

// Which form that is, for error texts.
absl::string_view InPlaceFormOf(OperationKind kind) {
  switch (TraitsOf(kind).in_place) {
    case InPlaceForm::kSame:
      return "works in place where target is source";
    case InPlaceForm::kTargetIsOwnChunk:
      return "works in place where target is this rank's chunk of source";
    case InPlaceForm::kSourceIsOwnChunk:
      return "works in place where source is this rank's chunk of target";
    case InPlaceForm::kNever:
      break;
  }
  return "does not work in place";
}

absl::Status CheckOverlap(const Communicator& communicator, const CollectiveCall& call) {
  if (!Clash(call.kind, communicator.rank(), BytesOf(call.source), BytesOf(call.target))) {
    return absl::OkStatus();
  }
  return Refuse(communicator,
                absl::StrCat("source, target: ", call.source.count, " elements of source and ",
                             call.target.count, " of target share memory; ", NameOf(call.kind), " ",
                             InPlaceFormOf(call.kind), "; pass a copy of source"));
}

uint64_t ChunksIn(const Communicator& communicator, TensorLength length) {
  return HasChunks(length) ? static_cast<uint64_t>(communicator.world_size().value()) : 1;
}

absl::Status CheckPair(const Communicator& communicator, const CollectiveCall& call) {
  const Tensor& source = call.source;
  const Tensor& target = call.target;
  RETURN_IF_ERROR(CheckDTypes(communicator, source, target));
  const uint64_t in_source = ChunksIn(communicator, TraitsOf(call.kind).source);
  const uint64_t in_target = ChunksIn(communicator, TraitsOf(call.kind).target);
  const bool are_alike = in_source == in_target;
  if (are_alike ? source.count != target.count
                : source.count * in_target != target.count * in_source) {
    return Refuse(communicator,
                  absl::StrCat("count: source has ", source.count, " elements, target ",
                               target.count, "; the ratio must be ", are_alike ? 1 : in_source,
                               " : ", are_alike ? 1 : in_target));
  }
  return CheckOverlap(communicator, call);
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

Location LocationOf(Tensor tensor) { return Locate(tensor.data, BytesOf(tensor).size()); }

absl::StatusOr<Completion> LaunchOn(Communicator& communicator, const Operation& operation,
                                    Stream* stream) {
  HostStream ready;
  return communicator.Launch(operation, stream == nullptr ? ready : *stream);
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

// Whether this rank has a tensor of that length.
bool Has(const Communicator& communicator, TensorLength length, Rank root) {
  if (length == TensorLength::kNone) return false;
  return !IsOnRootOnly(length) || communicator.rank() == root;
}

// The count of the operation whose tensor of that length is `tensor`.
absl::StatusOr<uint64_t> CountOf(const Communicator& communicator, Tensor tensor,
                                 TensorLength length) {
  const uint64_t chunks = ChunksIn(communicator, length);
  if (tensor.count % chunks == 0) return tensor.count / chunks;
  return Refuse(communicator, absl::StrCat("count: ", tensor.count, " elements are not ", chunks,
                                           " equal chunks"));
}

absl::Status CheckTensors(const Communicator& communicator, const CollectiveCall& call,
                          bool has_source, bool has_target) {
  if (has_source) RETURN_IF_ERROR(CheckData(communicator, "source", call.source));
  // The only tensor of a kind is called so.
  const bool is_alone = TraitsOf(call.kind).source == TensorLength::kNone;
  if (has_target) {
    RETURN_IF_ERROR(CheckData(communicator, is_alone ? "tensor" : "target", call.target));
  }
  if (has_source && has_target) RETURN_IF_ERROR(CheckPair(communicator, call));
  return absl::OkStatus();
}

}  // namespace

// A location that this rank has no tensor for is that of its other one, which nobody looks at.
absl::StatusOr<Completion> LaunchCollective(Communicator& communicator, const CollectiveCall& call,
                                            Stream* stream) {
  const OperationTraits& traits = TraitsOf(call.kind);
  if (traits.has_root) RETURN_IF_ERROR(CheckRank(communicator, "root", call.root));
  const bool has_source = Has(communicator, traits.source, call.root);
  const bool has_target = Has(communicator, traits.target, call.root);
  RETURN_IF_ERROR(CheckTensors(communicator, call, has_source, has_target));
  const Tensor source = has_source ? call.source : call.target;
  const Tensor target = has_target ? call.target : call.source;
  if (traits.reduces) RETURN_IF_ERROR(CheckReduction(communicator, call.op, source.dtype));
  ASSIGN_OR_RETURN(const uint64_t count,
                   CountOf(communicator, source, has_source ? traits.source : traits.target));
  Operation operation;
  if (has_source || has_target) operation = Between(call.kind, source, target, count);
  operation.kind = call.kind;
  if (traits.reduces) operation.reduce_op = call.op;
  if (traits.has_root) operation.peer = call.root.value();
  operation.bucket = call.bucket;
  operation.tag = call.shape_mark;
  return LaunchOn(communicator, operation, stream);
}

absl::StatusOr<Completion> Send(Communicator& communicator, Tensor source, Rank destination,
                                int32_t tag, Stream* stream) {
  RETURN_IF_ERROR(CheckRank(communicator, "destination", destination));
  RETURN_IF_ERROR(CheckData(communicator, "source", source));
  Operation operation = Between(OperationKind::kSend, source, source, source.count);
  operation.peer = destination.value();
  operation.tag = tag;
  return LaunchOn(communicator, operation, stream);
}

absl::StatusOr<Completion> Recv(Communicator& communicator, Tensor target, Rank source, int32_t tag,
                                Stream* stream) {
  RETURN_IF_ERROR(CheckRank(communicator, "source", source));
  RETURN_IF_ERROR(CheckData(communicator, "target", target));
  Operation operation = Between(OperationKind::kRecv, target, target, target.count);
  operation.peer = source.value();
  operation.tag = tag;
  return LaunchOn(communicator, operation, stream);
}

}  // namespace pelton
