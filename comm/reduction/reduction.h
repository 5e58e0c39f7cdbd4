// Element-wise reductions over several ranks' memory: the arithmetic of every collective.
#ifndef PELTON_COMM_REDUCTION_REDUCTION_H_
#define PELTON_COMM_REDUCTION_REDUCTION_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "core/memory/dtype.h"

namespace pelton {

// targets[t][i] = sources[0][i] op sources[1][i] op ..., for every t: bitwise what ReferenceReduce
// (reference.h, which states the rules) gives, with the instructions of this processor, whatever
// the thread does with denormals and however it rounds. Shape: all [count]. A target may be one of
// the sources; else they must not overlap. Nothing needs to be aligned. Threads: any. Requires:
// CheckReducible(dtype, op); at least one source.
void Reduce(absl::Span<const std::byte* const> sources, absl::Span<std::byte* const> targets,
            uint64_t count, DType dtype, ReduceOp op);

// The last step of an AVG whose sources are sums of several ranks' elements: as AVG, but divided by
// `divisor`. With one source it only divides. Requires: CheckReducible(dtype, AVG); divisor > 0.
void ReduceToMean(absl::Span<const std::byte* const> sources, absl::Span<std::byte* const> targets,
                  uint64_t count, DType dtype, size_t divisor);

}  // namespace pelton

#endif  // PELTON_COMM_REDUCTION_REDUCTION_H_
