// An operation of a PythonQueue, as its caller holds it.
#ifndef PELTON_TORCH_BINDINGS_CSRC_PYTHON_HANDLE_H_
#define PELTON_TORCH_BINDINGS_CSRC_PYTHON_HANDLE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/lane/lane.h"
#include "torch_bindings/csrc/outcome.h"

namespace pelton::torch_bindings {

// Threads: any. Owns: the outcome, until it dies.
class PythonHandle {
 public:
  using SharedGroup = std::shared_ptr<const Group>;

  // `group` is that of the first job's lane, for errors.
  PythonHandle(std::shared_ptr<lane::Lane> lane, lane::JobHandle job,
               std::shared_ptr<Outcome> outcome, SharedGroup group)
      : lane_(std::move(lane)),
        job_(std::move(job)),
        outcome_(std::move(outcome)),
        group_(std::move(group)) {}

  // Blocks: never.
  bool done() const {
    return job_->done() && (outcome_->next == nullptr || outcome_->next->done());
  }
  // The result; may be called again. Blocks: until done, at most until the operation's deadline.
  // Errors (thrown): the operation's.
  at::Tensor Wait();
  // Only once Wait has given a result.
  const std::vector<int64_t>& lengths() const { return outcome_->lengths; }

 private:
  const std::shared_ptr<lane::Lane> lane_;  // shared: the queue may be closed meanwhile
  const lane::JobHandle job_;
  const std::shared_ptr<Outcome> outcome_;  // shared with the job, which fills it
  const SharedGroup group_;                 // shared: with the queue and its other handles
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_PYTHON_HANDLE_H_
