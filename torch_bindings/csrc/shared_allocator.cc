#include "torch_bindings/csrc/shared_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstring>

#include "core/base/fork.h"

namespace pelton::torch_bindings {
namespace {

std::atomic<bool> is_enabled{false};
std::atomic<int> open_scopes{0};

c10::Allocator* torch_allocator = nullptr;  // set once, before this file's allocator is installed

// A forked child's pool would give out memory that its parent gives out, too.
void FreeShared(void* block) {
  if (!IsForkedChild()) SharedPool().Free(block);
}

void FreeRaw(void* block) {
  if (!SharedPool().FreeIfOwned(block)) torch_allocator->raw_deleter()(block);
}

// Serves large blocks from the pool while a scope is open, everything else from PyTorch's own
// allocator. Threads: any. Owns: nothing.
class PoolingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size_bytes) override {
    if (size_bytes < SharedAllocation::kSharedAllocationBytes ||
        open_scopes.load(std::memory_order_relaxed) <= 0 || IsForkedChild()) {
      return torch_allocator->allocate(size_bytes);
    }
    absl::StatusOr<void*> block = SharedPool().Allocate(size_bytes);
    if (!block.ok())
      return torch_allocator->allocate(size_bytes);  // the copying path serves such a gradient
    return {*block, *block, &FreeShared, c10::Device(c10::DeviceType::CPU)};
  }

  // oneDNN allocates raw memory: there a bare pointer must tell whose it is.
  c10::DeleterFnPtr raw_deleter() const override { return &FreeRaw; }

  void copy_data(void* destination, const void* source, size_t size_bytes) const override {
    std::memcpy(destination, source, size_bytes);
  }
};

void Install() {
  static const bool installed [[maybe_unused]] = [] {
    torch_allocator = c10::GetCPUAllocator();
    c10::SetCPUAllocator(new PoolingAllocator, /*priority=*/1);  // PyTorch keeps it for ever
    return true;
  }();
}

}  // namespace

RegionPool& SharedPool() {
  static RegionPool* const pool = new RegionPool("tensors");
  return *pool;
}

void SharedAllocation::SetEnabled(bool enabled) {
  if (enabled) Install();
  is_enabled.store(enabled, std::memory_order_relaxed);
  if (!enabled) open_scopes.store(0, std::memory_order_relaxed);
}

bool SharedAllocation::enabled() { return is_enabled.load(std::memory_order_relaxed); }

void SharedAllocation::Begin() {
  if (enabled()) open_scopes.fetch_add(1, std::memory_order_relaxed);
}

void SharedAllocation::End() {
  int open = open_scopes.load(std::memory_order_relaxed);
  while (open > 0 &&
         !open_scopes.compare_exchange_weak(open, open - 1, std::memory_order_relaxed)) {
  }
}

}  // namespace pelton::torch_bindings
