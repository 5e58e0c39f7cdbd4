// How a bucket that is ready comes to the scheduler of its model.
#ifndef PELTON_CORE_ROUND_SCHEDULER_SINK_H_
#define PELTON_CORE_ROUND_SCHEDULER_SINK_H_

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/actor/actor_ref.h"
#include "core/actor/permit.h"
#include "core/base/ids.h"
#include "core/bucket/plan.h"
#include "core/bucket/ready_tracker.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/operation_runner.h"
#include "core/round/scheduler.h"

namespace pelton {

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
    // Fails only when the scheduler is dead, which whoever waits hears of.
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

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_SCHEDULER_SINK_H_
