// Weighted sums and means of tensors: the arithmetic of everything that mixes weights, on the wire
// or off it. One rule for what a rank makes of its own tensor and its neighbours', however they
// come.
#ifndef PELTON_COMM_REDUCTION_LINEAR_COMBINATION_H_
#define PELTON_COMM_REDUCTION_LINEAR_COMBINATION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "comm/reduction/combinable.h"
#include "core/memory/dtype.h"

namespace pelton {

// Threads: a value. Owns: nothing.
struct Term {
  const std::byte* data = nullptr;
  double factor = 1;
  DType dtype = DType::kFloat32;
};

// Threads: a value. Owns: nothing.
struct CombinationTarget {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
};

// target[i] = factor_0 * term_0[i] + factor_1 * term_1[i] + ..., from the left, in float32, or in
// float64 where a term or the target is float64; factors are rounded to that type, and the sum to
// the target's at the end. No multiply-add is fused. One pass over the memory, with the
// instructions of this processor, whatever the thread does with denormals and however it rounds.
// Shape: all [count]. The target may be one of the terms; else nothing overlaps. Nothing needs to
// be aligned. Threads: any. Requires: IsCombinable of all dtypes; at least one term.
void LinearCombination(absl::Span<const Term> terms, CombinationTarget target, uint64_t count);

// target = factors[0] * tensors[0] + factors[1] * tensors[1] + ..., as LinearCombination; where all
// factors are 1 / n, but for rounding, it is the sum, divided by n, as ReduceToMean. Each element
// depends on the same elements only, so that pieces give the same bits as the whole.
// Shape: all [count], of the target's type; the target may be one of the tensors. Threads: any,
// with `terms` of their own, which saves an allocation.
void WeightedMean(absl::Span<const std::byte* const> tensors, absl::Span<const double> factors,
                  CombinationTarget target, uint64_t count, std::vector<Term>& terms);

// Of float32 or float64, aligned as these: the number at `data`; and `count` times `value`, rounded
// to that type.
double NumberAt(const std::byte* data, DType dtype);
void FillNumbers(CombinationTarget target, double value, uint64_t count);

}  // namespace pelton

#endif  // PELTON_COMM_REDUCTION_LINEAR_COMBINATION_H_
