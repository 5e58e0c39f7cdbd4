// Neighbour operations as programs: messages along a rank's own edges, and a local combination.
#ifndef PELTON_COMM_COLLECTIVES_NEIGHBOR_PROGRAM_H_
#define PELTON_COMM_COLLECTIVES_NEIGHBOR_PROGRAM_H_

#include <cstdint>
#include <vector>

#include "comm/collectives/program.h"
#include "core/base/ids.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/weight_table.h"

namespace pelton {

// Whose part a program is, and of what. Threads: a value. Owns: nothing.
struct NeighborShape {
  Rank rank;
  WorldSize world_size{1};
  OperationKind kind = OperationKind::kNeighborAllReduce;
  uint64_t count = 0;
};

// The part of `shape.rank` in a neighbour operation over `table`; peers are numbered as the ranks.
// All its messages are in one round: the tensor to each destination, and one from each source, to
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

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_NEIGHBOR_PROGRAM_H_
