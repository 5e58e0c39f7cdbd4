// Waiting for an operation on the calling thread.
#ifndef PELTON_COMM_AWAIT_H_
#define PELTON_COMM_AWAIT_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "core/actor/backoff.h"
#include "core/base/long_wait.h"
#include "core/base/moving_deadline.h"

namespace pelton {

// Drives `communicator` on this thread until `completion` is done, and returns its status. A wait
// that lasts is told of, and may be interrupted: see core/base/long_wait.h. Blocks: until
// `deadline`. Errors: the operation's; DeadlineExceeded: names the operation and the ranks that
// have not arrived; InterruptedError; the communicator is aborted with the last two. Under a
// simulation (core/actor/wait_hook.h) the other ranks run meanwhile, in virtual time. `standstill`:
// by what it adds meanwhile the deadline comes later; null: by nothing.
absl::Status Await(Communicator& communicator, Completion completion, absl::Time deadline,
                   const Standstill* standstill = nullptr);

// How a thread that drives `communicator` goes on while nothing moves, until it parks there for
// waits::kLongestParkOnWire at most.
inline Backoff BackoffOn(const Communicator& communicator) {
  return Backoff(waits::Steps{communicator.spins(), communicator.yields()});
}

// Looks after a thread that waits on a communicator for what CallName names.
// Threads: the one that waits. Owns: when it began, and whether it is to end.
class AttendedWait {
 public:
  explicit AttendedWait(const Communicator& communicator) : communicator_(communicator) {}
  AttendedWait(const AttendedWait&) = delete;
  AttendedWait& operator=(const AttendedWait&) = delete;

  // Between two parks: false if the thread is to wait no longer. `drives`: whether it drives the
  // communicator, which only that thread may ask for the ranks that are missing.
  bool GoesOn(absl::Time now, bool drives = true);
  // OK, or the InterruptedError that ended the wait; the communicator is not aborted yet.
  const absl::Status& interrupted() const { return interrupted_; }

 private:
  const Communicator& communicator_;
  absl::Time began_ = absl::InfinitePast();
  StallReport report_;
  absl::Status interrupted_;
};

// The same as Await for any condition: asks `done` after each step of progress, and returns its
// last answer. A Wake() of the communicator lets it ask at once. Blocks: until `done`, or
// `deadline`, or `wait` (null: nobody looks after it) does not go on.
bool DriveUntil(Communicator& communicator, absl::FunctionRef<bool()> done, absl::Time deadline,
                AttendedWait* wait = nullptr);

// What Await answers at the deadline of `completion`; aborts nothing.
absl::Status MissedDeadline(const Communicator& communicator, Completion completion);

}  // namespace pelton

#endif  // PELTON_COMM_AWAIT_H_
