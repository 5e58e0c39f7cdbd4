// All-to-all with parts of different sizes, over sends and receives.
#ifndef PELTON_COMM_ALL_TO_ALL_V_H_
#define PELTON_COMM_ALL_TO_ALL_V_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "core/base/moving_deadline.h"

namespace pelton {

// A piece of a tensor. Units: elements.
struct TensorPart {
  uint64_t offset = 0;
  uint64_t count = 0;
};

// Sends source_parts[i] of `source` to rank i and receives target_parts[i] of `target` from it; the
// own part is copied. Collective; runs on any communicator that has sends and receives with tags,
// in host memory. Shape: one part per rank, in bounds; parts of the target must not overlap each
// other or the source. Pairs: in step k rank r sends to r + k and receives from r - k; a bounded
// number of steps is in flight. A rank sends all but its own part, once. Blocks: until done or
// `deadline`, which stands still as `standstill` says. Errors: InvalidArgument, before anything is
// sent: names the part; InvalidArgument after all other parts have arrived: the sizes of a pair
// differ; else those of Await and Launch, and the communicator is aborted, because peers wait for
// the rest.
absl::Status AllToAllV(Communicator& communicator, Tensor source,
                       absl::Span<const TensorPart> source_parts, Tensor target,
                       absl::Span<const TensorPart> target_parts, absl::Time deadline,
                       const Standstill* standstill = nullptr);

}  // namespace pelton

#endif  // PELTON_COMM_ALL_TO_ALL_V_H_
