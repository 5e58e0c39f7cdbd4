#include "torch_bindings/csrc/shared_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/base/fork.h"
#include "core/memory/region.h"

namespace pelton::torch_bindings {
namespace {

enum class Mode { kOnOneHost, kAlways, kNever };

std::atomic<Mode> mode{Mode::kOnOneHost};
std::atomic<int> backward_passes{0};
std::atomic<int> scopes_of_all{0};

// How many gradients of a size are expected, by a hash of the size: an allocation is looked up
// without a lock, and one that is taken for a gradient by mistake costs nothing but its place.
constexpr int kExpectedBits = 12;
std::array<std::atomic<int>, size_t{1} << kExpectedBits> expected{};

std::atomic<int>& Expected(size_t size_bytes) {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  return expected[size_bytes * kGoldenRatio >> (64 - kExpectedBits)];
}

bool IsShared(size_t size_bytes) {
  if (size_bytes < SharedAllocation::kSharedAllocationBytes || IsForkedChild()) return false;
  if (scopes_of_all.load(std::memory_order_relaxed) > 0) return true;
  return backward_passes.load(std::memory_order_relaxed) > 0 &&
         Expected(size_bytes).load(std::memory_order_relaxed) > 0;
}

void EndOne(std::atomic<int>& scopes) {
  int open = scopes.load(std::memory_order_relaxed);
  while (open > 0 && !scopes.compare_exchange_weak(open, open - 1, std::memory_order_relaxed)) {
  }
}

c10::Allocator* torch_allocator = nullptr;  // set once, before this file's allocator is installed

// A forked child's pool would give out memory that its parent gives out, too.
void FreeShared(void* block) {
  if (!IsForkedChild()) SharedPool().Free(block);
}

// The pool's lock may be held for ever in a forked child, by a thread that is not there.
void FreeRaw(void* block) {
  if (IsForkedChild()) {
    if (Locate(block, 1).region == kPrivateRegion) torch_allocator->raw_deleter()(block);
  } else if (!SharedPool().FreeIfOwned(block)) {
    torch_allocator->raw_deleter()(block);
  }
}

// Serves what IsShared says from the pool, everything else from PyTorch's own allocator. Threads:
// any. Owns: nothing.
class PoolingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size_bytes) override {
    if (!IsShared(size_bytes)) return torch_allocator->allocate(size_bytes);
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

void SharedAllocation::SetEnabled(std::optional<bool> enabled) {
  if (!enabled.has_value()) {
    mode.store(Mode::kOnOneHost);
    return;
  }
  mode.store(*enabled ? Mode::kAlways : Mode::kNever);
  if (*enabled) return Install();
  backward_passes.store(0, std::memory_order_relaxed);
  scopes_of_all.store(0, std::memory_order_relaxed);
}

bool SharedAllocation::Serves(bool on_one_host) {
  const Mode now = mode.load();
  const bool serves = now == Mode::kAlways || (now == Mode::kOnOneHost && on_one_host);
  if (serves) Install();
  return serves;
}

void SharedAllocation::Begin() {
  if (mode.load(std::memory_order_relaxed) == Mode::kNever) return;
  backward_passes.fetch_add(1, std::memory_order_relaxed);
}
void SharedAllocation::End() { EndOne(backward_passes); }

void SharedAllocation::BeginAll() { scopes_of_all.fetch_add(1, std::memory_order_relaxed); }
void SharedAllocation::EndAll() { EndOne(scopes_of_all); }

ExpectedGradient::ExpectedGradient(size_t size_bytes) : size_bytes_(size_bytes) {
  Expected(size_bytes_).fetch_add(1, std::memory_order_relaxed);
}
ExpectedGradient::~ExpectedGradient() {
  Expected(size_bytes_).fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace pelton::torch_bindings
