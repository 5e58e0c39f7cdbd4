// What an algorithm remembers of a model between rounds: for checkpoints, for wrapping a model
// again, and for a group of another size.
#ifndef PELTON_CORE_ROUND_MODEL_STATE_H_
#define PELTON_CORE_ROUND_MODEL_STATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/memory/dtype.h"
#include "core/round/model_rounds.h"

namespace pelton {

// A copy of one SlotState. Threads: a value. Owns: the elements.
struct TensorState {
  std::string key;
  std::string tensor;  // its name in the plan
  uint64_t begin = 0;  // the tensor's element that the first one belongs to
  DType dtype = DType::kFloat32;
  std::vector<std::byte> bytes;
};

// Threads: a value. Owns: copies.
struct ModelState {
  uint64_t rounds = 0;             // that have been
  std::vector<std::string> order;  // of the tensors in the plan; empty while it is the first plan
  std::vector<TensorState> tensors;
};

// Between rounds. Blocks, Errors: as those of ModelRounds::SaveStates.
absl::StatusOr<ModelState> StateOf(ModelRounds& rounds, absl::Time deadline);

// Moves a new model on to the plan in which the tensors come in this order; none: the first plan is
// the one. Collective. Blocks: until `deadline`. Errors: InvalidArgument: a tensor that the model
// does not have; those of Replan.
absl::Status AdoptOrder(const std::vector<std::string>& order, ModelRounds& rounds,
                        absl::Time deadline);

// Moves a new model, which has had no round, on to the plan and the state that StateOf told; its
// rounds were created to count on from `state.rounds`. Collective where the state has an order.
// Blocks: until `deadline`. Errors: InvalidArgument: a tensor that the model does not have;
// elements that the algorithm keeps on this rank and the state lacks or has in another dtype, or
// has and the algorithm does not keep (a state that no round has made lacks all); the text names
// the tensor. Those of Replan, SaveStates and LoadStates.
absl::Status Restore(ModelState state, ModelRounds& rounds, absl::Time deadline);

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

#endif  // PELTON_CORE_ROUND_MODEL_STATE_H_
