// A plan with everything that is made for it.
#ifndef PELTON_CORE_ROUND_PLAN_INSTANCE_H_
#define PELTON_CORE_ROUND_PLAN_INSTANCE_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/actor/sendable.h"
#include "core/base/ids.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"
#include "core/plan/bucket.h"
#include "core/plan/plan.h"
#include "core/plan/ready_tracker.h"

namespace pelton {

struct PlanInstance;

// Which tensors any rank has used in a round, by one small operation of all ranks: a byte per slot,
// 1 where this rank has used the tensor in the round and else 0, combined by MAX.
//
// The pipeline of the plan's last bucket launches the operation before its own, and is complete
// only with it. Buckets are released in the plan's order, so that every tensor of the round has
// been marked by then, and that every rank launches the operation at the same place (ORDER-1).
//
// Steps: one allreduce in a round. Bytes: those of the communicator's allreduce of a byte per slot.
// Threads: the stages are the channel's; Fetch and UsedByAny are the waiter's, between the round's
// end and the next round's marks. Owns: the bytes, on the device where the buckets are.
class RoundUsage {
 public:
  // Has the last bucket's pipeline find unused tensors where a pipeline of `instance` asks for it.
  // `device` is that of the buckets and outlives the instance; null: the host. Errors:
  // InvalidArgument: that pipeline does not run in every round; the device's.
  static absl::Status AddWhereWanted(PlanInstance& instance, DeviceQueue* device);
  ~RoundUsage();
  RoundUsage(const RoundUsage&) = delete;
  RoundUsage& operator=(const RoundUsage&) = delete;

  // After a round: brings to the host which tensors other ranks have used, where that is elsewhere
  // and this rank has left one unused. Blocks: on a device, until the copy is done, or `deadline`.
  // Errors: those of DeviceQueue::Read.
  absl::Status Fetch(const ReadyTracker& tracker, absl::Time deadline);
  // Of a slot that this rank has left unused, after Fetch: whether another rank has used it.
  bool UsedElsewhere(SlotId slot) const {
    return used_[static_cast<size_t>(slot.value())] != std::byte{0};
  }

 private:
  class LaunchStage;
  class AwaitStage;

  RoundUsage(size_t slot_count, DeviceQueue* device) : used_(slot_count), device_(device) {}
  static absl::StatusOr<std::unique_ptr<RoundUsage>> Create(size_t slot_count, DeviceQueue* device);
  // Writes what this rank has used.
  absl::Status Fill(const BucketRun& run);
  Operation Maximum();

  std::vector<std::byte> used_;  // on the host: exchanged, or fetched
  DeviceQueue* const device_;
  std::byte* on_device_ = nullptr;  // exchanged, where there is a device
  OperationBatch batch_;
};

// One version of a model's plan. It stays where it was made: its parts refer to each other.
// Threads: as its parts. Owns: plan, memory, tracker, usage and pipelines.
struct PlanInstance {
  explicit PlanInstance(Plan its_plan) : plan(std::move(its_plan)) {}
  PlanInstance(const PlanInstance&) = delete;
  PlanInstance& operator=(const PlanInstance&) = delete;

  const Plan plan;
  std::unique_ptr<BucketStorage> storage;
  std::unique_ptr<ReadyTracker> tracker;
  std::unique_ptr<RoundUsage> usage;  // null: no pipeline finds unused tensors
  std::vector<Pipeline> pipelines;    // by bucket

  // After RoundUsage::Fetch of a round that is complete: Pipeline::PutBackUnused of all that ran.
  void PutBackUnused(Round round);
};

// Lends an instance to the scheduler, until it has answered for the next one or has ended: the one
// reference that travels in a message, because memory that others write cannot.
// Threads: a value. Owns: nothing.
class PlanInstanceLoan {
 public:
  explicit PlanInstanceLoan(PlanInstance* instance) : instance_(instance) {}
  PlanInstance* get() const { return instance_; }

 private:
  PlanInstance* instance_;
};
template <>
inline constexpr bool kSendableType<PlanInstanceLoan> = true;

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_PLAN_INSTANCE_H_
