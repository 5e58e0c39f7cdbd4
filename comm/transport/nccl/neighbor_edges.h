// The edges of a neighbour operation as records that their two ends compare.
#ifndef PELTON_COMM_TRANSPORT_NCCL_NEIGHBOR_EDGES_H_
#define PELTON_COMM_TRANSPORT_NCCL_NEIGHBOR_EDGES_H_

#include <vector>

#include "comm/transport/nccl/posts.h"
#include "core/base/ids.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/weight_table.h"

namespace pelton::nccl {

// Puts one record for each destination and source into `edges`, by the distance between the two
// ranks, from the sender upward: both ends of each edge have it at the same distance, so that ranks
// whose hosts take few messages at once do not wait for one another in a circle.
// Requires: `operation` is as its caller made it, checked.
void FillEdges(const Operation& operation, const WeightTable& table, Rank rank,
               WorldSize world_size, std::vector<EdgePost>& edges);

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_NEIGHBOR_EDGES_H_
