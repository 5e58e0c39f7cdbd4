// All ranks hold the same plan, or all of them learn where it differs.
#ifndef PELTON_COMM_CONTROL_PLAN_CHECK_H_
#define PELTON_COMM_CONTROL_PLAN_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "core/plan/plan.h"

namespace pelton {

struct PlanSummary {
  std::string name;                // of the model or group: the same on all members
  std::vector<Rank> members = {};  // in the world, of the ranks that hold it; empty: all ranks
  PlanVersion version;
  uint64_t hash = 0;
  std::vector<std::string> entries;  // in plan order, for people: "fc1.weight float32 [128, 64]"
};

// Compares the hashes of all members, of which this is `self`; only when they differ are entries
// exchanged. Collective among them. Blocks: until all have called, or `deadline`. Errors, the same
// on every member: FailedPrecondition: names the hashes, the ranks and the first entry that
// differs; AllGatherAmong's.
absl::Status CheckPlan(Control& control, Rank self, const PlanSummary& plan, absl::Time deadline);

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_PLAN_CHECK_H_
