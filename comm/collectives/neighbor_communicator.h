// Gives any communicator that sends and receives neighbour operations.
#ifndef PELTON_COMM_COLLECTIVES_NEIGHBOR_COMMUNICATOR_H_
#define PELTON_COMM_COLLECTIVES_NEIGHBOR_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/collectives/program.h"
#include "comm/communicator.h"
#include "core/base/ids.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/weight_table.h"

namespace pelton {

// Neighbour operations as programs: messages along a rank's own edges, and a local combination.
// Whose part a program is, and of what. Threads: a value. Owns: nothing.
struct NeighborShape {
  Rank rank;
  WorldSize world_size{1};
  OperationKind kind = OperationKind::kNeighborAllReduce;
  uint64_t count = 0;
};

// The part of `shape.rank` in a neighbour operation over `table`; peers are numbered as the ranks.
// All its messages are in one wave: the tensor to each destination, and one from each source, to
// scratch memory (kNeighborAllReduce, which then combines them, this rank's own first, then by
// source, ascending) or to its place in the target (kNeighborAllGather). A weight that travels
// follows its tensor. A rank sends its tensor once for each destination.
//
// Messages are launched by the distance between the ranks, those to and from the same distance
// together: a runner that takes few of them at a time then has the same ones in flight on all ranks
// of one operation.
Program NeighborProgram(const NeighborShape& shape, const WeightTable& table);

// What Buffer::kFactors of that program holds: the own weight, the sources', room for those that
// arrive from the sources, and those that are sent.
std::vector<double> FactorsOf(const WeightTable& table);

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
// goes on; on wires that say so (TransportPromises), a sender gets no error if its message was
// taken before it met its receive. Where only one end sends weights, both get the same error, and a
// communicator that is not native ends.
std::unique_ptr<Communicator> MakeNeighborCommunicator(std::unique_ptr<Communicator> wire);

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_NEIGHBOR_COMMUNICATOR_H_
