// How the trainer's thread waits for the scheduler of its model.
#ifndef PELTON_CORE_ROUND_ROUND_WAITER_H_
#define PELTON_CORE_ROUND_ROUND_WAITER_H_

#include <atomic>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/actor/actor_ref.h"
#include "core/actor/borrow.h"
#include "core/actor/promise.h"
#include "core/base/ids.h"
#include "core/base/standstill.h"
#include "core/pipeline/operation_runner.h"
#include "core/round/scheduler.h"

namespace pelton {

// Runs the scheduler on the waiting thread whenever nobody else runs it, which saves the two
// wake-ups of a hand-over.
// Threads: the one that waits; drives() is read by the scheduler's turns. Owns: nothing.
class RoundWaiter {
 public:
  // `runner` is the scheduler's and outlives this; `has_device`: the scheduler has work on one that
  // may go on after a future is ready. `standstill` may be null.
  RoundWaiter(OperationRunner& runner, bool has_device, const Standstill* standstill)
      : runner_(runner), has_device_(has_device), standstill_(standstill) {}

  void set_scheduler(ActorRef<BucketScheduler> scheduler) { scheduler_ = std::move(scheduler); }
  // For SchedulerOptions::waiter_drives.
  const std::atomic<bool>* drives() const { return &drives_; }

  // Returns when `future`, an answer of the scheduler's, is ready, or `*deadline` has passed, which
  // is put off by as long as deadlines stand still meanwhile.
  // Blocks: until then. Errors: InterruptedError: the wait was given up.
  absl::Status WaitFor(const Future<void>& future, absl::Time* deadline);
  // See ModelRounds::TakeBackMarks; of the scheduler's marks alone.
  absl::StatusOr<std::vector<BucketId>> TakeBackMarks(Round round, absl::Time deadline);

 private:
  absl::Status WaitUntil(const Future<void>& future, absl::Time deadline);
  // The part of it in which the scheduler has work.
  absl::Status Drive(const Future<void>& future, absl::Time deadline);
  // False if there is nothing left to drive.
  absl::StatusOr<bool> DriveBorrowed(Borrowed<BucketScheduler> scheduler,
                                     const Future<void>& future, absl::Time deadline);

  OperationRunner& runner_;
  const bool has_device_;
  const Standstill* const standstill_;
  std::atomic<bool> drives_{false};
  ActorRef<BucketScheduler> scheduler_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_ROUND_WAITER_H_
