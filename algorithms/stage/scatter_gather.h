// An allreduce in its two halves.
#ifndef PELTON_ALGORITHMS_STAGE_SCATTER_GATHER_H_
#define PELTON_ALGORITHMS_STAGE_SCATTER_GATHER_H_

#include <memory>

#include "comm/communicator.h"
#include "core/memory/dtype.h"
#include "core/pipeline/stage.h"

namespace pelton {

// Exchange: reduces a bucket's flat part with `op` so that each rank is left with its chunk, then
// gathers the chunks; in place. The flat part's count must be a multiple of the number of ranks.
// Steps: a reduce_scatter and an allgather. With Bagua's all-to-all and a reduction of the own
// chunk in place of the first, each rank would send as much and, where the reduce_scatter adds in
// rank order, hold the same bits (SUM-1b); it would need a second buffer.
// Bytes: for a flat part of B bytes on n ranks a rank sends 2 * B * (n - 1) / n.
// Source: Bagua's `scattergather`.
std::unique_ptr<Stage> MakeScatterGatherStage(ReduceOp op, const Communicator& ranks);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_SCATTER_GATHER_H_
