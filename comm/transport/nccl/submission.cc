#include "comm/transport/nccl/submission.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "comm/transport/neighbor_check.h"

namespace pelton::nccl {
namespace {

// Of a gather: where in its target the tensor of source number `index` begins. Units: bytes.
size_t GatheredBefore(const Flight& flight, size_t index) {
  uint64_t count = 0;
  for (size_t i = 0; i < index; ++i) {
    count += flight.neighbor.table->CountOf(i, flight.operation.count);
  }
  return count * flight.mapping.per_element;
}

// Threads: one. Owns: nothing.
class Group {
 public:
  Group(const Flight& flight, const Destination& to, const NcclTable& calls, Handle comm)
      : flight_(flight), to_(to), calls_(calls), comm_(comm), result_(calls.group_start()) {
    bytes_ = flight.operation.count * flight.mapping.per_element;
  }

  // One chunk of the operation's tensors to or from `peer`.
  void Send(int peer, int chunk) {
    if (result_ != kOk) return;
    const std::byte* from = flight_.memory.source + static_cast<size_t>(chunk) * bytes_;
    Note(calls_.send(from, bytes_, flight_.mapping.type, peer, comm_, to_.stream));
  }
  void Recv(int peer, int chunk) {
    if (result_ != kOk) return;
    std::byte* into = flight_.memory.target + static_cast<size_t>(chunk) * bytes_;
    Note(calls_.recv(into, bytes_, flight_.mapping.type, peer, comm_, to_.stream));
  }
  // The group must be ended also after an error: NCCL counts.
  int End() {
    const int ended = calls_.group_end();
    return result_ == kOk ? ended : result_;
  }

 private:
  void Note(int result) {
    if (result != kInProgress) result_ = result;
  }

  const Flight& flight_;
  const Destination& to_;
  const NcclTable& calls_;
  const Handle comm_;
  int result_;
  size_t bytes_;
};

// One group: the messages to the same rank match in their order in it. Nothing is sent along an
// edge that differs, nor where there is nothing, of which both ends know.
int SubmitToNeighbors(const Flight& flight, const Destination& to, const NcclTable& calls,
                      Handle comm) {
  const NeighborPlace& place = flight.neighbor.place;
  const bool averages = flight.operation.kind == OperationKind::kNeighborAllReduce;
  const bool sends_weights = averages && flight.neighbor.table->sends_weights();
  int result = calls.group_start();
  const auto note = [&](int next) {
    if (result == kOk && next != kInProgress) result = next;
  };
  const auto send = [&](const void* from, size_t bytes, int peer) {
    if (result == kOk) note(calls.send(from, bytes, Type::kInt8, peer, comm, to.stream));
  };
  const auto recv = [&](void* into, size_t bytes, int peer) {
    if (result == kOk) note(calls.recv(into, bytes, Type::kInt8, peer, comm, to.stream));
  };
  for (const EdgePost& edge : flight.post.edges) {
    const size_t bytes = edge.mine.count * flight.mapping.per_element;
    if (edge.differs || bytes == 0) continue;
    const int peer = edge.peer.value();
    if (edge.sends()) {
      send(flight.memory.source, bytes, peer);
      if (sends_weights) send(place.leaving + edge.index, sizeof(double), peer);
    } else {
      recv(averages ? place.tensors + edge.index * place.stride_bytes
                    : flight.memory.target + GatheredBefore(flight, edge.index),
           bytes, peer);
      if (sends_weights) recv(place.arrived + edge.index, sizeof(double), peer);
    }
  }
  // The group must be ended also after an error: NCCL counts.
  const int ended = calls.group_end();
  return result == kOk ? ended : result;
}

int SubmitGrouped(const Flight& flight, const Destination& to, const NcclTable& calls,
                  Handle comm) {
  Group group(flight, to, calls, comm);
  const int root = flight.operation.peer;
  const OperationKind kind = flight.operation.kind;
  for (int peer = 0; peer < to.rank_count; ++peer) {
    if (kind == OperationKind::kAllToAll || (kind == OperationKind::kScatter && to.rank == root)) {
      group.Send(peer, peer);
    }
    if (kind == OperationKind::kAllToAll || (kind == OperationKind::kGather && to.rank == root)) {
      group.Recv(peer, peer);
    }
  }
  if (kind == OperationKind::kGather) group.Send(root, 0);
  if (kind == OperationKind::kScatter) group.Recv(root, 0);
  return group.End();
}

}  // namespace

bool MovesAnything(const Flight& flight) {
  const OperationKind kind = flight.operation.kind;
  if (!IsNeighborKind(kind)) return flight.operation.count > 0 || kind == OperationKind::kBarrier;
  const std::vector<EdgePost>& edges = flight.post.edges;
  return std::any_of(edges.begin(), edges.end(),
                     [](const EdgePost& edge) { return !edge.differs && edge.mine.count > 0; });
}

absl::string_view CallOf(OperationKind kind) {
  switch (kind) {
    case OperationKind::kReduce:
      return "ncclReduce";
    case OperationKind::kReduceScatter:
      return "ncclReduceScatter";
    case OperationKind::kAllGather:
      return "ncclAllGather";
    case OperationKind::kBroadcast:
      return "ncclBroadcast";
    case OperationKind::kSend:
      return "ncclSend";
    case OperationKind::kRecv:
      return "ncclRecv";
    case OperationKind::kBarrier:
    case OperationKind::kAllReduce:
      return "ncclAllReduce";
    default:
      return "ncclGroupEnd";
  }
}

int Submit(const Flight& flight, const Destination& to, const NcclTable& calls, Handle comm) {
  const auto [type, per_element, op] = flight.mapping;
  const size_t count = flight.operation.count * per_element;
  const std::byte* source = flight.memory.source;
  std::byte* target = flight.memory.target;
  switch (flight.operation.kind) {
    case OperationKind::kBarrier:
      return calls.all_reduce(to.scratch, to.scratch, 1, Type::kInt32, Op::kSum, comm, to.stream);
    case OperationKind::kAllReduce:
      return calls.all_reduce(source, target, count, type, op, comm, to.stream);
    case OperationKind::kReduce:
      return calls.reduce(source, target, count, type, op, flight.operation.peer, comm, to.stream);
    case OperationKind::kReduceScatter:
      return calls.reduce_scatter(source, target, count, type, op, comm, to.stream);
    case OperationKind::kAllGather:
      return calls.all_gather(source, target, count, type, comm, to.stream);
    case OperationKind::kBroadcast:
      return calls.broadcast(target, target, count, type, flight.operation.peer, comm, to.stream);
    case OperationKind::kSend:
      return calls.send(source, count, type, to.peer, comm, to.stream);
    case OperationKind::kRecv:
      return calls.recv(target, count, type, to.peer, comm, to.stream);
    case OperationKind::kNeighborAllReduce:
    case OperationKind::kNeighborAllGather:
      return SubmitToNeighbors(flight, to, calls, comm);
    default:
      return SubmitGrouped(flight, to, calls, comm);
  }
}

}  // namespace pelton::nccl
