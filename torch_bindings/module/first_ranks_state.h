// A module's tensors before training: the same on all ranks.
#ifndef PELTON_TORCH_BINDINGS_MODULE_FIRST_RANKS_STATE_H_
#define PELTON_TORCH_BINDINGS_MODULE_FIRST_RANKS_STATE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "torch_bindings/csrc/named_tensors.h"

namespace pelton {

// Gives all ranks the values that `tensors` have on rank 0 of `communicator`; on a GPU by way of
// the host. Collective. Blocks: until `deadline`. Errors: FailedPrecondition: number, names, shapes
// or dtypes differ: says on which ranks from rank 0's, before a byte is changed; those of
// operations.
absl::Status TakeFirstRanksState(Communicator& communicator, const std::string& module,
                                 const torch_bindings::NamedTensors& tensors, absl::Time deadline);

}  // namespace pelton

#endif  // PELTON_TORCH_BINDINGS_MODULE_FIRST_RANKS_STATE_H_
