// Collectives that the fabric has no schedule of its own for: the programs of all ranks, run in one
// step.
#ifndef PELTON_COMM_TRANSPORT_SIM_PROGRAMS_H_
#define PELTON_COMM_TRANSPORT_SIM_PROGRAMS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "comm/collectives/program.h"
#include "comm/transport/sim/network.h"
#include "comm/transport/sim/schedule.h"
#include "core/base/ids.h"
#include "core/pipeline/operation.h"

namespace pelton {

// Whether a schedule runs `operation` among so many ranks. Errors: Unimplemented: none does.
absl::Status CheckHasProgram(const Operation& operation, WorldSize world_size);

// One part of a collective for each rank, by rank; all agree. Threads: one. Owns: the programs.
class ProgramWorld {
 public:
  // Requires: CheckHasProgram.
  explicit ProgramWorld(absl::Span<const Part> parts);

  Outcome Run() const;
  // As CompletionTimes in schedule.h. A round of a lane begins on a rank when the lane's round
  // before is done there, and local steps take no time.
  std::vector<absl::Time> CompletionTimes(absl::Span<const Rank> members, absl::Time now,
                                          Network& network) const;

 private:
  const std::vector<Part> parts_;
  std::vector<Program> programs_;
};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_SIM_PROGRAMS_H_
