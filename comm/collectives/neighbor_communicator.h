// Gives any communicator that sends and receives neighbour operations.
#ifndef PELTON_COMM_COLLECTIVES_NEIGHBOR_COMMUNICATOR_H_
#define PELTON_COMM_COLLECTIVES_NEIGHBOR_COMMUNICATOR_H_

#include <memory>

#include "comm/communicator.h"

namespace pelton {

// Runs kNeighborAllReduce and kNeighborAllGather as programs over the sends and receives of `wire`,
// which has tags, on host memory; hands all else on as it is. A wire that runs them by itself
// (transport/native_neighbors.h) is returned as it is. Operation::peer is the id of a
// WeightTable, which may be dropped after Launch, and Operation::tag, in [0, kNeighborTags), is
// what both ends of an edge match by.
//
// EDGE-1: an operation waits for its own neighbours' parts in it and for nothing else, neither for
// a collective nor for another neighbour operation; the operations with one tag between two ranks
// match in launch order. Where the tensors at two ends of an edge differ in shape or dtype, the
// operation ends with InvalidArgument there, after its other edges are served, and the communicator
// goes on; a sender whose message was taken before it met its receive does not hear of it on wires
// that say so (TransportPromises). Where only one end sends weights, both get the same error, and
// a communicator that is not native ends.
std::unique_ptr<Communicator> MakeNeighborCommunicator(std::unique_ptr<Communicator> wire);

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_NEIGHBOR_COMMUNICATOR_H_
