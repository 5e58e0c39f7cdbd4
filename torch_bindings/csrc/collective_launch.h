// A collective as a job launches it, with a bucket, by which ranks compare names.
#ifndef PELTON_TORCH_BINDINGS_CSRC_COLLECTIVE_LAUNCH_H_
#define PELTON_TORCH_BINDINGS_CSRC_COLLECTIVE_LAUNCH_H_

#include <cstdint>
#include <optional>

#include "comm/collectives.h"
#include "comm/lane/job.h"
#include "comm/tags.h"
#include "core/memory/cuda/cuda_runtime.h"

namespace pelton::torch_bindings {

// What of comm/collectives.h's functions, and how. Threads: a value. Owns: nothing.
struct Collective {
  OperationKind kind;
  Tensor source;
  Tensor target;
  uint64_t count;
  BucketId bucket = kNoBucket;
  int32_t root = kNoPeer;
  ReduceOp reduce_op = ReduceOp::kSum;
  int32_t shape_mark = kNoShapeMark;
};

// A GPU's stream, which the operation runs on; none: the host's, which orders nothing.
using OnStream = std::optional<CudaStream>;

lane::Job::Launch LaunchOf(const Collective& collective, const OnStream& on_stream);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_COLLECTIVE_LAUNCH_H_
