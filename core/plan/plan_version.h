// The number of a model's plan.
#ifndef PELTON_CORE_PLAN_PLAN_VERSION_H_
#define PELTON_CORE_PLAN_PLAN_VERSION_H_

#include <cstdint>

#include "core/base/ids.h"

namespace pelton {

// From 1; grows by one with each new order or bucket size of the same tensors (GEN-1). Another
// number than the Generation of the membership.
using PlanVersion = Id<struct PlanVersionTag, uint32_t>;

}  // namespace pelton

#endif  // PELTON_CORE_PLAN_PLAN_VERSION_H_
