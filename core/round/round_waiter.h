// How the trainer's thread and the scheduler of its model meet: buckets that are ready, and waits.
#ifndef PELTON_CORE_ROUND_ROUND_WAITER_H_
#define PELTON_CORE_ROUND_ROUND_WAITER_H_

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/actor/actor_ref.h"
#include "core/actor/borrow.h"
#include "core/actor/promise.h"
#include "core/actor/sync_policy.h"
#include "core/base/ids.h"
#include "core/base/moving_deadline.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/operation.h"
#include "core/plan/plan.h"
#include "core/plan/ready_tracker.h"
#include "core/round/scheduler.h"

namespace pelton {

// How a bucket that is ready comes to the scheduler of its model.
// Sends each bucket's message with room that was reserved when the round began, so that a mark
// cannot fail. Threads: as ReadySink; Arm by one thread, between rounds. Owns: the room.
class SchedulerSink final : public ReadySink {
 public:
  SchedulerSink(OperationRunner& runner, DeviceQueue* device) : runner_(runner), device_(device) {}

  void set_scheduler(ActorRef<BucketScheduler> scheduler) { scheduler_ = std::move(scheduler); }
  // Reserves room for a round of `plan`. A dead scheduler has none: whoever waits hears of it.
  void Arm(const Plan& plan) {
    version_ = plan.version();
    room_.resize(plan.buckets().size());
    for (std::optional<Permits<BucketScheduler>>& room : room_) {
      if (room.has_value() && room->remaining() > 0) continue;
      absl::StatusOr<Permits<BucketScheduler>> reserved = scheduler_.Reserve();
      if (reserved.ok()) room.emplace(*std::move(reserved));
    }
  }

  // Gives all room back: a scheduler that stops waits for what may still come.
  void Disarm() { room_.clear(); }

  void OnBucketReady(BucketId bucket, Round round) override {
    std::optional<Permits<BucketScheduler>>& room = room_[static_cast<size_t>(bucket.value())];
    if (!room.has_value()) return;
    if (device_ != nullptr) {
      // The bucket's operations then fail with the reason.
      if (absl::Status marked = device_->MarkReady(bucket); !marked.ok()) runner_.Abort(marked);
    }
    // Fails only when the scheduler is dead; the wait for the round returns that error.
    room->Send(BucketReady{bucket, round, version_}).IgnoreError();
    runner_.Wake();  // the scheduler's thread may be parked on the runner
  }

 private:
  OperationRunner& runner_;
  DeviceQueue* const device_;
  ActorRef<BucketScheduler> scheduler_;
  PlanVersion version_;
  std::vector<std::optional<Permits<BucketScheduler>>> room_;  // by bucket
};

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
  const internal::RealSync::Atomic<bool>* drives() const { return &drives_; }

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
  bool ShallCheckInterrupt() const;
  // As CheckInterrupt, while the scheduler's executor drives.
  absl::Status CheckInterruptAside();
  // False if there is nothing left to drive.
  bool DriveBorrowed(Borrowed<BucketScheduler> scheduler, const Future<void>& future,
                     absl::Time deadline);

  OperationRunner& runner_;
  const bool has_device_;
  const Standstill* const standstill_;
  internal::RealSync::Atomic<bool> drives_{false};
  absl::Time checked_at_ = absl::InfinitePast();
  ActorRef<BucketScheduler> scheduler_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_ROUND_WAITER_H_
