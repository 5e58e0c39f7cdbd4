// Gradients born in shared memory: PyTorch's CPU allocator, taken over while a backward pass runs.
#ifndef PELTON_TORCH_BINDINGS_CSRC_SHARED_ALLOCATOR_H_
#define PELTON_TORCH_BINDINGS_CSRC_SHARED_ALLOCATOR_H_

#include "core/memory/region_pool.h"

namespace pelton::torch_bindings {

// The process's pool behind pelton.empty and the gradient allocator. Never destroyed: tensors may
// outlive everything else.
RegionPool& SharedPool();

// Lets allocations of kSharedAllocationBytes and more come from SharedPool while a scope of
// SharedAllocation is open on any thread. Forked children share such memory with their parent, so
// it is for gradients only. Threads: any. Owns: nothing.
class SharedAllocation {
 public:
  static constexpr size_t kSharedAllocationBytes = size_t{64} << 10;

  // Installs the allocator on first use. Off: Begin and End have no effect.
  static void SetEnabled(bool enabled);
  static bool enabled();

  // Counted: allocations are shared from the first Begin to the End that matches it.
  static void Begin();
  static void End();
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_SHARED_ALLOCATOR_H_
