// What becomes of an operation of a PythonQueue.
#ifndef PELTON_TORCH_BINDINGS_CSRC_OUTCOME_H_
#define PELTON_TORCH_BINDINGS_CSRC_OUTCOME_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "comm/lane/job.h"
#include "comm/lane/lane.h"

namespace pelton::torch_bindings {

// Written before the operation begins and by its first job, which other threads look at once that
// is done: the job's end publishes it.
// Threads: as said. Owns: the result.
struct Outcome {
  at::Tensor result;
  std::vector<int64_t> lengths =
      {};                     // of a gather between neighbours: the sources' first dimensions
  absl::Status failure = {};  // what is wrong although the jobs ended well
  // What follows the first job, on a lane that may be another one; null: nothing does.
  std::shared_ptr<lane::Lane> next_lane = nullptr;  // shared: as the handle's
  lane::JobHandle next = nullptr;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_OUTCOME_H_
