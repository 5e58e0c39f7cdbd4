#include "algorithms/stage/neighbor_messages.h"

#include <algorithm>
#include <vector>

#include "core/base/status.h"
#include "core/pipeline/operation.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<NeighborMessages>> NeighborMessages::Create(
    Communicator& communicator, const std::string& name, uint64_t message_bytes,
    size_t most_sources) {
  const uint64_t size_bytes = std::max<uint64_t>(message_bytes * most_sources, 1);
  ASSIGN_OR_RETURN(std::unique_ptr<Scratch> received,
                   Scratch::Create(communicator, name, size_bytes));
  return std::unique_ptr<NeighborMessages>(
      new NeighborMessages(communicator.id(), message_bytes, std::move(received)));
}

// Both ends of an edge meet it in the order of ranks: where there are more operations than may be
// in flight, no circle of ranks waits for each other.
void NeighborMessages::Begin(const Neighborhood& neighborhood, Location message) {
  batch_.Clear();
  const std::vector<Neighbor>& sources = neighborhood.sources;
  const std::vector<Neighbor>& destinations = neighborhood.destinations;
  size_t source = 0;
  for (const Neighbor& destination : destinations) {
    while (source < sources.size() && sources[source].rank < destination.rank) {
      Post(OperationKind::kRecv, sources[source].rank, received_->At(source * message_bytes_));
      ++source;
    }
    Post(OperationKind::kSend, destination.rank, message);
  }
  for (; source < sources.size(); ++source) {
    Post(OperationKind::kRecv, sources[source].rank, received_->At(source * message_bytes_));
  }
}

void NeighborMessages::Post(OperationKind kind, Rank peer, Location location) {
  Operation operation;
  operation.kind = kind;
  operation.dtype = DType::kUInt8;
  operation.count = message_bytes_;
  operation.peer = peer.value();
  operation.communicator = communicator_;
  kind == OperationKind::kSend ? operation.set_source(location) : operation.set_target(location);
  batch_.Add(operation);
}

}  // namespace pelton
