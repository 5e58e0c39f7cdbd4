// Waiting for an operation on the calling thread.
#ifndef PELTON_COMM_AWAIT_H_
#define PELTON_COMM_AWAIT_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/communicator.h"

namespace pelton {

// Drives `communicator` on this thread until `completion` is done, and returns its status. Spins
// shortly, yields, then parks. Blocks: until `deadline`. Errors: the operation's; DeadlineExceeded:
// names the operation and the ranks that have not arrived, and the communicator is aborted with it.
// Under a simulation (core/actor/wait_hook.h) the other ranks run meanwhile, in virtual time.
absl::Status Await(Communicator& communicator, Completion completion, absl::Time deadline);

// The same for any condition: asks `done` after each step of progress, and returns its last answer.
// A Wake() of the communicator lets it ask at once. Blocks: until `done`, or `deadline`.
bool DriveUntil(Communicator& communicator, absl::FunctionRef<bool()> done, absl::Time deadline);

// What Await answers at the deadline of `completion`; aborts nothing.
absl::Status MissedDeadline(const Communicator& communicator, Completion completion);

}  // namespace pelton

#endif  // PELTON_COMM_AWAIT_H_
