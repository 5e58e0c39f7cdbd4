// What windows compute: the sums of edges and of updates, for numbers of floating point and whole
// ones.
#ifndef PELTON_COMM_WINDOW_ARITHMETIC_H_
#define PELTON_COMM_WINDOW_ARITHMETIC_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "comm/reduction/linear_combination.h"
#include "core/memory/dtype.h"

namespace pelton {

// Errors: InvalidArgument: windows hold no such elements (they hold float16 to float64, bfloat16,
// int32 and int64).
absl::Status CheckWindowType(DType dtype);
// Errors: InvalidArgument: `weight` is not finite, or not whole where the elements are.
absl::Status CheckWindowWeight(DType dtype, double weight);

// target = the sum of factor * term, from the left, as LinearCombination; whole numbers wrap.
// Shape: all [count], all of `dtype`; the target may be one of the terms. Requires: both checks.
void WeightedSum(absl::Span<const Term> terms, std::byte* target, uint64_t count, DType dtype);
// target = the sum of the terms, whatever their factors, divided by `divisor`. The same shapes.
// Requires: no whole numbers.
void MeanOf(absl::Span<const Term> terms, std::byte* target, uint64_t count, DType dtype,
            size_t divisor);

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_ARITHMETIC_H_
