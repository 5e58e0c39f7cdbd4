// Ranges of time in PyTorch's profilers.
#ifndef PELTON_TORCH_BINDINGS_CSRC_PROFILER_RANGE_H_
#define PELTON_TORCH_BINDINGS_CSRC_PROFILER_RANGE_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "core/trace/trace.h"

namespace at {
class ThreadLocalState;
}

namespace pelton::torch_bindings {

// Whether a profiler is shown what this thread does. Units: some nanoseconds.
bool IsProfiled();

// Begins an event in the profiler of the calling thread, with the shapes of `inputs`. The answer
// ends it, on any thread; null if nobody is profiling.
absl::AnyInvocable<void()> BeginProfilerRange(std::string name,
                                              const std::vector<at::Tensor>& inputs = {});

// Shows a model's rounds to the profiler under which the trainer begins them: what other threads do
// for a round is the trainer's. From Follow to Leave no profiler may end, which is why rounds that
// go on beside training are not shown.
// Threads: any. Owns: a copy of the state of the thread that is followed.
class ProfiledRounds final : public RangeViewer {
 public:
  ProfiledRounds();
  ~ProfiledRounds() override;

  void Follow() override;
  void Leave() override;

  bool is_looking() const override { return is_looking_.load(std::memory_order_relaxed); }
  absl::AnyInvocable<void()> Begin(std::string name) override;

 private:
  std::atomic<bool> is_looking_{false};
  // Shared: ranges are begun by it while it is let go.
  std::atomic<std::shared_ptr<const at::ThreadLocalState>> state_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_PROFILER_RANGE_H_
