// What PyTorch's callers get for an operation of a Pelton process group.
#ifndef PELTON_TORCH_BINDINGS_CSRC_C10D_WORK_H_
#define PELTON_TORCH_BINDINGS_CSRC_C10D_WORK_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "comm/lane/lane.h"
#include "core/base/moving_deadline.h"

namespace pelton::torch_bindings {

// What PyTorch's profilers see of an operation.

// Begins an event "<backend>:<operation>" with the shapes of `inputs`, under the names that gloo
// gives its own. The answer ends it, on any thread; null if nobody is profiling.
absl::AnyInvocable<void()> BeginRecord(const std::string& backend, ::c10d::OpType type,
                                       const std::vector<at::Tensor>& inputs);

// Its waits release nothing and need nothing: PyTorch's bindings give Python's lock away before.
// Threads: any. Owns: the results, until it dies.
class QueuedWork final : public ::c10d::Work {
 public:
  struct Results {
    std::vector<at::Tensor> tensors;
    bool is_nested = false;  // a list of one list, as all_gather and gather have it
    int source = -1;         // of a receive
    // Shared with the receive from any rank that finds it: the same, once it is done.
    std::shared_ptr<std::atomic<int>> found_source = nullptr;
  };

  // `standstill`: for how long the deadlines of waits do not come nearer; it lives as long as the
  // lane.
  QueuedWork(int rank, ::c10d::OpType type, std::shared_ptr<lane::Lane> lane,
             const Standstill& standstill, lane::JobHandle job, Results results)
      : Work(rank, type),
        lane_(std::move(lane)),
        standstill_(standstill),
        job_(std::move(job)),
        results_(std::move(results)) {}

  bool isCompleted() override { return job_->done(); }
  bool isSuccess() const override { return job_->done() && job_->status().ok(); }
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return results_.tensors; }
  int sourceRank() const override {
    return results_.found_source == nullptr ? results_.source : results_.found_source->load();
  }
  void synchronize() override { wait(); }
  // Drives the group on this thread. Blocks: until done, or `timeout`, which stands still while a
  // rank is awaited; none: until the operation's own deadline. Errors (thrown): the operation's;
  // DeadlineExceeded: `timeout` passed, the operation goes on.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return job_->sequence(); }

 private:
  c10::IValue ResultValue() const;

  // Shared: work may be the last to hold either.
  const std::shared_ptr<lane::Lane> lane_;
  const Standstill& standstill_;
  const lane::JobHandle job_;
  const Results results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by the base's mutex_
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_C10D_WORK_H_
