// The reduction that every other one is measured against: plain, scalar, in rank order (SUM-1b).
#ifndef PELTON_COMM_REDUCTION_REFERENCE_H_
#define PELTON_COMM_REDUCTION_REFERENCE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "comm/reduction/reducible.h"
#include "core/memory/dtype.h"

namespace pelton {

// target[i] = sources[0][i] op sources[1][i] op ..., from the left. The rules:
//  - float32, float64 and complex round after each step; float16 and bfloat16 accumulate in float32
//    and round once, at the end. No multiply-add is fused.
//  - Integers wrap around, in their own width.
//  - AVG divides the finished sum by the number of sources: before the final rounding for the
//    16-bit types; integers truncate toward zero.
//  - MIN, MAX: a NaN wins; of equal values (-0 and +0) the first stays.
//  - bool: any byte but 0 is true, results are 0 or 1; SUM and MAX are "or", PRODUCT and MIN "and".
//  - Which NaN comes out is not specified.
// Shape: each source [count], at least one of them; target [count], which may be one of the sources
// but not overlap it in part. Any alignment. Errors: InvalidArgument: of CheckReducible.
absl::Status ReferenceReduce(absl::Span<const std::byte* const> sources, std::byte* target,
                             uint64_t count, DType dtype, ReduceOp op);

// AVG by `divisor` in the place of the number of sources: the last part of a mean over more of
// them.
absl::Status ReferenceReduceToMean(absl::Span<const std::byte* const> sources, std::byte* target,
                                   uint64_t count, DType dtype, size_t divisor);

}  // namespace pelton

#endif  // PELTON_COMM_REDUCTION_REFERENCE_H_
