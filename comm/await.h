// Waiting for an operation on the calling thread.
#ifndef PELTON_COMM_AWAIT_H_
#define PELTON_COMM_AWAIT_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/communicator.h"

namespace pelton {

// Drives `communicator` on this thread until `completion` is done, and returns its status. Spins
// shortly, yields, then parks. Blocks: until `deadline`. Errors: the operation's; DeadlineExceeded:
// names the operation and the ranks that have not arrived, and the communicator is aborted with it.
// Under a simulation (core/actor/wait_hook.h) the other ranks run meanwhile, in virtual time.
absl::Status Await(Communicator& communicator, Completion completion, absl::Time deadline);

}  // namespace pelton

#endif  // PELTON_COMM_AWAIT_H_
