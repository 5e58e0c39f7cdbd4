// Collectives for a wire that only has sends and receives.
#ifndef PELTON_COMM_COLLECTIVES_SCHEDULED_COMMUNICATOR_H_
#define PELTON_COMM_COLLECTIVES_SCHEDULED_COMMUNICATOR_H_

#include <memory>

#include "comm/collectives/selection.h"
#include "comm/communicator.h"

namespace pelton {

// A communicator that runs every collective as a program over the sends and receives of `wire`, the
// schedule chosen by `table`; sends and receives pass through. All ranks need the same table.
//
// Where the ranks' operations differ, what notices it fails with InvalidArgument and the
// communicator is aborted with that text on all ranks: pieces of the collective are under way, and
// later ones must not meet them. A rank whose part was done before learns it from its next
// operation. Missing() names the ranks whose messages are waited for.
//
// Half of the operations in flight are for the user's sends and receives, half for the programs'.
// So a user's receive that stays unmatched for long holds up nothing else.
std::unique_ptr<Communicator> MakeScheduledCommunicator(std::unique_ptr<Communicator> wire,
                                                        SelectionTable table);

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_SCHEDULED_COMMUNICATOR_H_
