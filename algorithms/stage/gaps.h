// What lies between the slots of a bucket's flat part.
#ifndef PELTON_ALGORITHMS_STAGE_GAPS_H_
#define PELTON_ALGORITHMS_STAGE_GAPS_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "core/plan/plan.h"

namespace pelton {

// Zeros between the slots: what a lossy exchange leaves there must not count in the next.
void ZeroGaps(const Plan& plan, const BucketLayout& layout, std::byte* flat);
// Calls f(begin_bytes, size_bytes) for each gap.
void ForEachGap(const Plan& plan, const BucketLayout& layout,
                absl::FunctionRef<void(uint64_t, uint64_t)> f);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_GAPS_H_
