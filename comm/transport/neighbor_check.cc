#include "comm/transport/neighbor_check.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "comm/reduction/combinable.h"
#include "comm/tags.h"
#include "core/base/status.h"

namespace pelton {
namespace {

absl::Status Refuse(Rank rank, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("rank ", rank.value(), ": ", what));
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
