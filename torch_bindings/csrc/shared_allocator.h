// Gradients born in shared memory: PyTorch's CPU allocator, taken over while a backward pass runs.
#ifndef PELTON_TORCH_BINDINGS_CSRC_SHARED_ALLOCATOR_H_
#define PELTON_TORCH_BINDINGS_CSRC_SHARED_ALLOCATOR_H_

#include <cstddef>
#include <optional>

#include "core/memory/region_pool.h"

namespace pelton::torch_bindings {

// The process's pool behind pelton.empty and the gradient allocator. Never destroyed: tensors may
// outlive everything else.
RegionPool& SharedPool();

// Has gradients of wrapped models come from SharedPool: blocks of kSharedAllocationBytes and more
// that are allocated during a backward pass, on any thread, and have the size of an expected
// gradient. Activations' gradients, whose sizes may change from step to step, stay with PyTorch's
// allocator, so that the pool holds no more than the models' gradients take. Threads: any. Owns:
// nothing.
class SharedAllocation {
 public:
  static constexpr size_t kSharedAllocationBytes = size_t{64} << 10;

  // What the user says; unset: for models whose ranks share a host, where others can read them.
  static void SetEnabled(std::optional<bool> enabled);
  // Whether a model with several ranks, all `on_one_host` or not, has its gradients there. Installs
  // the allocator if so.
  static bool Serves(bool on_one_host);

  // A backward pass of a wrapped model. Counted: from the first Begin to the End that matches it.
  static void Begin();
  static void End();
  // The same for large blocks of any size, whatever code allocates them.
  static void BeginAll();
  static void EndAll();
};

// While it lives, blocks of `size_bytes` are gradients. Threads: any. Owns: nothing.
class ExpectedGradient {
 public:
  explicit ExpectedGradient(size_t size_bytes);
  ~ExpectedGradient();
  ExpectedGradient(const ExpectedGradient&) = delete;
  ExpectedGradient& operator=(const ExpectedGradient&) = delete;

 private:
  const size_t size_bytes_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_SHARED_ALLOCATOR_H_
