// Small blocks of memory that threads hand to each other: messages and the state of futures.
#ifndef PELTON_CORE_ACTOR_BLOCK_POOL_H_
#define PELTON_CORE_ACTOR_BLOCK_POOL_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace pelton::internal {

// Blocks of 64 to 1024 bytes in powers of two, aligned to a cache line. A thread takes from and
// gives back to magazines (arrays of blocks) of its own and exchanges whole ones with a shared
// depot, so that a block which one thread allocates and another frees costs one exchange per
// kMagazineBlocks messages and no allocation in steady state. What one pool holds is bounded by
// what was in use at once; larger blocks come from the heap.
// Threads: any. Owns: all blocks that are not in use.
class BlockPool {
 public:
  static constexpr size_t kSmallestBytes = 64;
  static constexpr size_t kLargestBytes = 1024;
  static constexpr size_t kClasses = 5;
  static constexpr uint32_t kMagazineBlocks = 126;

  // A block of at least `bytes`; never null.
  static void* Allocate(size_t bytes) {
    if (bytes > kLargestBytes) return AllocateLarge(bytes);
    Magazine* magazine = cache_[Class(bytes)];
    if (magazine == nullptr || magazine->count == 0) return AllocateSlow(Class(bytes));
    const uint32_t last = --magazine->count;
    // The block was last written by the thread that freed it: fetch its successors ahead of use.
    if (last >= kPrefetch) __builtin_prefetch(magazine->blocks[last - kPrefetch], 1);
    return Claim(magazine->blocks[last], bytes);
  }

  // Gives back what Allocate(bytes) returned.
  static void Free(void* block, size_t bytes) {
    if (bytes > kLargestBytes) return FreeLarge(block);
    Disclaim(block, bytes);
    Magazine* magazine = cache_[Class(bytes)];
    if (magazine == nullptr || magazine->count == kMagazineBlocks) {
      return FreeSlow(block, Class(bytes));
    }
    magazine->blocks[magazine->count++] = block;
  }

 private:
  friend class BlockDepot;
  friend class CacheFlusher;
  static constexpr uint32_t kPrefetch = 6;

  struct Magazine {
    Magazine* next = nullptr;
    uint32_t count = 0;
    std::array<void*, kMagazineBlocks> blocks;
  };

  static constexpr size_t Class(size_t bytes) {
    return bytes <= kSmallestBytes ? 0 : std::bit_width((bytes - 1) / kSmallestBytes);
  }
  static void* AllocateSlow(size_t size_class);
  static void FreeSlow(void* block, size_t size_class);
  static void* AllocateLarge(size_t bytes);
  static void FreeLarge(void* block);
#if defined(__SANITIZE_ADDRESS__)
  static void* Claim(void* block, size_t bytes);
  static void Disclaim(void* block, size_t bytes);
#else
  static void* Claim(void* block, size_t) { return block; }
  static void Disclaim(void*, size_t) {}
#endif

  static constinit thread_local std::array<Magazine*, kClasses> cache_;
};

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_BLOCK_POOL_H_
