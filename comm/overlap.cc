#include "comm/overlap.h"

#include <functional>

namespace pelton {
namespace {

using Bytes = absl::Span<const std::byte>;

// Where `part` lies as number `rank` of the equal parts of `whole`.
bool IsChunk(Bytes part, Bytes whole, Rank rank) {
  return part.data() == whole.data() + static_cast<size_t>(rank.value()) * part.size();
}

}  // namespace

bool Clash(OperationKind kind, Rank rank, Bytes source, Bytes target) {
  if (source.empty() || target.empty()) return false;
  const std::less<> before;  // also for pointers into different objects
  const bool overlap = before(source.data(), target.data() + target.size()) &&
                       before(target.data(), source.data() + source.size());
  if (!overlap) return false;
  switch (kind) {
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
      return source.data() != target.data();
    case OperationKind::kReduceScatter:
      return !IsChunk(target, source, rank);
    case OperationKind::kAllGather:
      return !IsChunk(source, target, rank);
    default:
      return true;
  }
}

absl::string_view InPlaceFormOf(OperationKind kind) {
  switch (kind) {
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
      return "works in place where target is source";
    case OperationKind::kReduceScatter:
      return "works in place where target is this rank's chunk of source";
    case OperationKind::kAllGather:
      return "works in place where source is this rank's chunk of target";
    default:
      return "does not work in place";
  }
}

}  // namespace pelton
