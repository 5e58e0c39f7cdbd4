#include "comm/transport/nccl/flight.h"

#include <algorithm>

#include "comm/transport/operation_check.h"

namespace pelton::nccl {
namespace {

// As the message that carries the tensor, which DifferenceOfPair compares. The shape's mark lies
// where comm/tags.h says.
Operation MessageOf(const Operation& operation, const WeightTable& table, OperationKind kind) {
  Operation message;
  message.kind = kind;
  message.dtype = operation.dtype;
  message.flags = FlagsOf(operation.kind, table.sends_weights());
  message.count = operation.count;
  message.bucket = operation.bucket;
  message.tag = operation.tag;
  const bool sends = kind == OperationKind::kSend;
  (sends ? message.target_offset : message.source_offset) = operation.sequence;
  return message;
}

}  // namespace

void FillEdges(const Operation& operation, const WeightTable& table, Rank rank,
               WorldSize world_size, std::vector<EdgePost>& edges) {
  edges.clear();
  for (size_t i = 0; i < table.destinations().size(); ++i) {
    edges.push_back({.mine = MessageOf(operation, table, OperationKind::kSend),
                     .peer = table.destinations()[i].rank,
                     .index = i});
  }
  for (size_t i = 0; i < table.sources().size(); ++i) {
    edges.push_back({.mine = MessageOf(operation, table, OperationKind::kRecv),
                     .peer = table.sources()[i].rank,
                     .index = i});
    if (operation.kind == OperationKind::kNeighborAllGather) {
      edges.back().mine.count = table.CountOf(i, operation.count);
    }
  }
  for (EdgePost& edge : edges) edge.mine.peer = edge.peer.value();
  const int32_t n = world_size.value();
  const auto distance = [&](const EdgePost& edge) {
    const int32_t upward = edge.peer.value() - rank.value();
    return ((edge.sends() ? upward : -upward) + n) % n;
  };
  std::stable_sort(edges.begin(), edges.end(),
                   [&](const EdgePost& a, const EdgePost& b) { return distance(a) < distance(b); });
}

}  // namespace pelton::nccl
