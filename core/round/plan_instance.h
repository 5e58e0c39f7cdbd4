// A plan with everything that is made for it.
#ifndef PELTON_CORE_ROUND_PLAN_INSTANCE_H_
#define PELTON_CORE_ROUND_PLAN_INSTANCE_H_

#include <memory>
#include <vector>

#include "core/actor/sendable.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/bucket.h"
#include "core/plan/plan.h"
#include "core/plan/ready_tracker.h"
#include "core/round/round_usage.h"

namespace pelton {

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
