// What a rank makes of its own tensor and its neighbours': one rule for every way they come.
#ifndef PELTON_COMM_REDUCTION_WEIGHTED_MEAN_H_
#define PELTON_COMM_REDUCTION_WEIGHTED_MEAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "comm/reduction/linear_combination.h"

namespace pelton {

// target = factors[0] * tensors[0] + factors[1] * tensors[1] + ..., as LinearCombination; where all
// factors are 1 / n, but for rounding, it is the sum, divided by n, as ReduceToMean. Each element
// depends on the same elements only, so that pieces give the same bits as the whole.
// Shape: all [count], of the target's type; the target may be one of the tensors. Threads: any,
// with `terms` of their own, which saves an allocation.
void WeightedMean(absl::Span<const std::byte* const> tensors, absl::Span<const double> factors,
                  CombinationTarget target, uint64_t count, std::vector<Term>& terms);

}  // namespace pelton

#endif  // PELTON_COMM_REDUCTION_WEIGHTED_MEAN_H_
