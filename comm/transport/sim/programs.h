// Collectives that the fabric has no recipe of its own for: the programs of all ranks, run in one
// step.
#ifndef PELTON_COMM_TRANSPORT_SIM_PROGRAMS_H_
#define PELTON_COMM_TRANSPORT_SIM_PROGRAMS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "comm/transport/sim/network.h"
#include "comm/transport/sim/outcome.h"
#include "core/base/ids.h"
#include "core/pipeline/operation.h"

namespace pelton {

// Whether a recipe runs `operation` among so many ranks. Errors: Unimplemented: none does.
absl::Status CheckHasProgram(const Operation& operation, WorldSize world_size);

// Threads: a value. Owns: the bytes.
struct ProgramResult {
  Outcome outcome;
  std::vector<absl::Time> times;  // by rank; as CompletionTimes
};

// Runs the collective that `parts` agree on, for which CheckHasProgram is OK, parts[r] being rank
// r's and `members[r]` its number in the network, which books the transfers. A wave of a strand
// begins on a rank when the strand's wave before is done there, and local steps take no time.
ProgramResult RunAsPrograms(absl::Span<const Part> parts, absl::Span<const Rank> members,
                            absl::Time now, Network& network);

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_SIM_PROGRAMS_H_
