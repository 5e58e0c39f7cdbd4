#include "comm/transport/operation_check.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "comm/reduction/combinable.h"
#include "comm/reduction/reducible.h"
#include "comm/tags.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// In Operation::flags, beside the kind.
constexpr uint8_t kSendsWeights = 0x80;

// Of a message of a collective.
int32_t MarkOf(const Operation& message) {
  return static_cast<int32_t>(message.kind == OperationKind::kSend ? message.target_offset
                                                                   : message.source_offset);
}

std::string FailedStage(const Operation& message, Rank rank) {
  return absl::StrCat("rank ", rank.value(), " has failed in an earlier stage of this operation (",
                      NameOf(message.dtype), " x ", message.count,
                      "), so that it has no tensor to combine; its own error says why");
}

absl::Status Refuse(Rank rank, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("rank ", rank.value(), ": ", what));
}

absl::Status CheckPeer(const Operation& operation, Rank rank, WorldSize world_size) {
  const bool is_pair = IsPointToPoint(operation.kind);
  if (!is_pair && !HasRoot(operation.kind)) return absl::OkStatus();
  if (operation.peer < 0 || operation.peer >= world_size.value()) {
    return Refuse(rank, absl::StrCat("peer: ", operation.peer, " of ", NameOf(operation.kind),
                                     " is not in [0, ", world_size.value(), ")"));
  }
  if (is_pair && operation.peer == rank.value()) {
    return Refuse(rank, absl::StrCat("peer: ", operation.peer, " of ", NameOf(operation.kind),
                                     " is the rank itself"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> Address(Location location, uint64_t size_bytes, absl::string_view what,
                                   Rank rank) {
  if (size_bytes == 0) return nullptr;
  absl::StatusOr<std::byte*> address = Resolve(location, size_bytes);
  if (!address.ok()) return Refuse(rank, absl::StrCat(what, ": ", address.status().message()));
  if (*address == nullptr) {
    return Refuse(rank, absl::StrCat(what, ": null address for ", size_bytes, " bytes"));
  }
  return address;
}

absl::Status CheckRanks(absl::string_view name, const std::vector<Neighbor>& neighbors, Rank rank,
                        WorldSize world_size) {
  for (const Neighbor& neighbor : neighbors) {
    if (neighbor.rank == rank) {
      return Refuse(rank, absl::StrCat(name, ": rank ", rank.value(),
                                       " is this rank; give its weight as its own"));
    }
    if (neighbor.rank.value() >= world_size.value()) {
      return Refuse(rank, absl::StrCat(name, ": rank ", neighbor.rank.value(), " is not in [0, ",
                                       world_size.value(), ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFields(const Operation& operation, const WeightTable& table, Rank rank) {
  const int dtype = static_cast<int>(operation.dtype);
  if (dtype >= kDTypeCount) return Refuse(rank, absl::StrCat("dtype: ", dtype, " is not one"));
  const bool combines = operation.kind == OperationKind::kNeighborAllReduce;
  if (combines && !IsCombinable(operation.dtype)) {
    return Refuse(rank,
                  absl::StrCat("dtype: ", NameOf(operation.kind), " of ", NameOf(operation.dtype),
                               " has no weighted mean; float16, bfloat16, float32 and float64 do"));
  }
  if (operation.tag < 0 || operation.tag >= kNeighborTags) {
    return Refuse(rank, absl::StrCat("tag: ", operation.tag, " of ", NameOf(operation.kind),
                                     " is not in [0, ", kNeighborTags, ")"));
  }
  const uint64_t tensors = 1 + table.sources().size();
  const uint64_t most = std::numeric_limits<int64_t>::max() / (SizeOf(operation.dtype) * tensors);
  if (operation.count > most || table.TotalCount(operation.count) > most * tensors) {
    return Refuse(rank, absl::StrCat("count: ", operation.count, " of ", NameOf(operation.dtype),
                                     " is more than memory can hold"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOperation(const Operation& operation, Rank rank, WorldSize world_size) {
  const KindScope scope = TraitsOf(operation.kind).scope;
  if (scope == KindScope::kNeighbors || scope == KindScope::kReserved) {
    return Refuse(rank, absl::StrCat("kind: ", NameOf(operation.kind), " (",
                                     static_cast<int>(operation.kind), ") is not implemented"));
  }
  RETURN_IF_ERROR(CheckPeer(operation, rank, world_size));
  if (static_cast<int>(operation.dtype) >= kDTypeCount) {
    return Refuse(rank, absl::StrCat("dtype: ", static_cast<int>(operation.dtype), " is not one"));
  }
  if (Reduces(operation.kind)) {
    RETURN_IF_ERROR(Annotate(CheckReducible(operation.dtype, operation.reduce_op),
                             absl::StrCat("rank ", rank.value())));
  }
  const uint64_t bytes_per_count =
      SizeOf(operation.dtype) * static_cast<uint64_t>(world_size.value());
  if (operation.count > std::numeric_limits<int64_t>::max() / bytes_per_count) {
    return Refuse(rank, absl::StrCat("count: ", operation.count, " of ", NameOf(operation.dtype),
                                     " is more than memory can hold"));
  }
  return absl::OkStatus();
}

absl::StatusOr<OperationMemory> ResolveOperation(const Operation& operation, Rank rank,
                                                 WorldSize world_size) {
  const Extent extent = ExtentOf(operation, rank, world_size);
  OperationMemory memory;
  ASSIGN_OR_RETURN(memory.source, Address(operation.source(), extent.source_bytes, "source", rank));
  ASSIGN_OR_RETURN(memory.target, Address(operation.target(), extent.target_bytes, "target", rank));
  return memory;
}

uint8_t FlagsOf(OperationKind kind, bool sends_weights) {
  return static_cast<uint8_t>(1 + static_cast<uint8_t>(kind) + (sends_weights ? kSendsWeights : 0));
}

std::string DifferenceOfPair(const Operation& send, Rank sender, const Operation& recv,
                             Rank receiver) {
  auto as_collective = [](Operation message) {
    const int32_t mark = MarkOf(message);
    message.kind = message.flags == 0
                       ? OperationKind::kSend
                       : static_cast<OperationKind>((message.flags & ~kSendsWeights) - 1);
    message.peer = kNoPeer;  // of the message, not of the collective
    if (message.flags == 0) message.bucket = kNoBucket;
    message.tag = message.flags == 0 ? 0 : mark;
    return message;
  };
  const bool sender_failed = send.flags != 0 && MarkOf(send) == kFailedStageMark;
  const bool receiver_failed = recv.flags != 0 && MarkOf(recv) == kFailedStageMark;
  if (sender_failed && !receiver_failed) return FailedStage(send, sender);
  if (receiver_failed && !sender_failed) return FailedStage(recv, receiver);
  if (((send.flags ^ recv.flags) & kSendsWeights) != 0 && send.flags != 0 && recv.flags != 0) {
    const bool sender_has_them = (send.flags & kSendsWeights) != 0;
    return absl::StrCat("rank ", sender_has_them ? sender.value() : receiver.value(),
                        kOneEndSendsWeights, " and rank ",
                        sender_has_them ? receiver.value() : sender.value(),
                        " does not; give them on both, or on neither");
  }
  return DifferenceOf(as_collective(send), sender, as_collective(recv), receiver);
}

absl::StatusOr<NeighborOperation> CheckNeighborOperation(const Operation& operation, Rank rank,
                                                         WorldSize world_size) {
  NeighborOperation checked;
  checked.table = WeightTable::Find(operation.peer);
  if (checked.table == nullptr) {
    return Refuse(rank, absl::StrCat("peer: ", operation.peer, " of ", NameOf(operation.kind),
                                     " is the number of no weight table"));
  }
  RETURN_IF_ERROR(CheckRanks("sources", checked.table->sources(), rank, world_size));
  RETURN_IF_ERROR(CheckRanks("destinations", checked.table->destinations(), rank, world_size));
  RETURN_IF_ERROR(CheckFields(operation, *checked.table, rank));
  ASSIGN_OR_RETURN(checked.memory, ResolveOperation(operation, rank, world_size));
  return checked;
}

absl::StatusOr<NeighborOperation> CheckNeighborOperation(const Operation& operation,
                                                         const Stream& stream, Rank rank,
                                                         WorldSize world_size) {
  if (stream.device() != DeviceKind::kHost) {
    return absl::InvalidArgumentError(
        "stream: neighbour operations of this transport run on the host");
  }
  return CheckNeighborOperation(operation, rank, world_size);
}

}  // namespace pelton
