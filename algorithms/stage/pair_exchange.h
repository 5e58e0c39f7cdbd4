// Means of two ranks at a time, by windows, with rounds that no other rank takes part in.
#ifndef PELTON_ALGORITHMS_STAGE_PAIR_EXCHANGE_H_
#define PELTON_ALGORITHMS_STAGE_PAIR_EXCHANGE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/graph/graph_sequence.h"
#include "comm/tiers.h"
#include "core/pipeline/stage.h"
#include "core/plan/plan.h"

namespace pelton {

// A bucket, weights x, becomes by how much x is to change. In a round of its own a rank
//   collects what answers to its own offers gave it: x += their sum;
//   answers each offer x_k that lies here: d = (x_k - x) / 2, x += d, and gives -d to rank k;
//   withdraws its last offer, if that is unanswered and was made to another rank;
//   offers x, as it is then, to one neighbour, the next in turn among those that it has in the
//   graph of the round.
// An offer is answered once, and each d is added at one end and -d at the other, so that the sum
// over all ranks stays what it is, up to rounding, once every rank has collected (MASS-1). A rank
// has one offer at a time: answers to several old ones together would take it past the others'
// mean. Offers go along the edges, and answers come back along them, so that the graphs need be no
// symmetric ones; their weights are not looked at.
//
// A round in RoundMode::kCollecting gives nothing: it collects, and forgets the offers that lie
// here. After it nothing is left between ranks.
//
// Works in float64 for float64, else in float32. Blocks: the stage never inside a host; its making
// and Errors: as WindowSource::Make.
absl::StatusOr<std::unique_ptr<Stage>> MakePairExchangeStage(const BucketLayout& layout,
                                                             const Tiers& tiers,
                                                             std::unique_ptr<GraphSequence> graphs);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_PAIR_EXCHANGE_H_
