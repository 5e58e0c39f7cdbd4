// What an algorithm remembers, in a group of another size.
#ifndef PELTON_CORE_ROUND_RESHARD_H_
#define PELTON_CORE_ROUND_RESHARD_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/round/model_rounds.h"
#include "core/round/model_state.h"

namespace pelton {

// Moves a new model, which has had no round and whose state is primed, on to what `states` told on
// all ranks of a group of any size, in rank order. What its stages keep says what becomes of it
// (StateScope): what is common stays, bitwise; a rank's own becomes the mean of those of the ranks
// that kept it, so that the sum over the ranks divided by their number stays; elements of which one
// rank kept the only ones come from that rank; replicas stay as they are primed, for which all
// ranks hold the same weights. Where nobody kept something, because nothing was encoded, it stays
// zero. Collective where the states have an order. Blocks: until `deadline`. Errors:
// InvalidArgument: a tensor that the model does not have; ranks whose common elements differ;
// elements in another dtype, or a part of them only; the text names key and tensor. Those of
// Replan, SaveStates and LoadStates.
absl::Status Reshard(absl::Span<const ModelState> states, ModelRounds& rounds, absl::Time deadline);

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_RESHARD_H_
