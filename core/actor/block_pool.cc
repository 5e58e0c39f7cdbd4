#include "core/actor/block_pool.h"

#include <atomic>
#include <new>
#include <vector>

#include "absl/base/optimization.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace pelton::internal {

constinit thread_local std::array<BlockPool::Magazine*, BlockPool::kClasses> BlockPool::cache_{};

// Magazines of one size that no thread holds. Its lock is held for a few instructions, once per
// magazine.
// Threads: any. Owns: its magazines and their blocks, for the life of the process.
class BlockDepot {
 public:
  using Magazine = BlockPool::Magazine;

  static BlockDepot& Of(size_t size_class) {
    static auto& depots = *new std::array<BlockDepot, BlockPool::kClasses>;
    return depots[size_class];
  }

  // A magazine with blocks for one without.
  Magazine* TakeFull(Magazine* empty, size_t size_class) {
    Lock();
    if (empty != nullptr) Push(empty_, empty);
    Magazine* full = Pop(full_);
    if (full == nullptr) full = Pop(empty_);
    Unlock();
    if (full == nullptr) full = new Magazine;
    if (full->count == 0) Fill(full, size_class);
    return full;
  }

  // A magazine with room for one without; null takes back `full` only.
  Magazine* TakeEmpty(Magazine* full) {
    Lock();
    if (full != nullptr) Push(full_, full);
    Magazine* empty = Pop(empty_);
    Unlock();
    return empty != nullptr ? empty : new Magazine;
  }

  void GiveBack(Magazine* magazine) {
    Lock();
    Push(magazine->count > 0 ? full_ : empty_, magazine);
    Unlock();
  }

 private:
  static void Push(Magazine*& stack, Magazine* magazine) {
    magazine->next = stack;
    stack = magazine;
  }
  static Magazine* Pop(Magazine*& stack) {
    Magazine* top = stack;
    if (top != nullptr) stack = top->next;
    return top;
  }

  void Fill(Magazine* magazine, size_t size_class) {
    const size_t bytes = BlockPool::kSmallestBytes << size_class;
    auto* slab = static_cast<char*>(::operator new (bytes* BlockPool::kMagazineBlocks,
                                                    std::align_val_t{BlockPool::kSmallestBytes}));
    Lock();
    slabs_.push_back(slab);
    Unlock();
    for (uint32_t i = BlockPool::kMagazineBlocks; i > 0; --i) {
      magazine->blocks[magazine->count++] = slab + (i - 1) * bytes;
    }
  }

  void Lock() {
    while (locked_.test_and_set(std::memory_order_acquire)) {
      locked_.wait(true, std::memory_order_relaxed);
    }
  }
  void Unlock() {
    locked_.clear(std::memory_order_release);
    locked_.notify_one();
  }

  std::atomic_flag locked_;
  Magazine* full_ = nullptr;
  Magazine* empty_ = nullptr;
  std::vector<char*> slabs_;  // so that leak checkers see them
};

// Returns a thread's magazines when it ends.
// Threads: its own. Owns: nothing.
class CacheFlusher {
 public:
  ~CacheFlusher() {
    for (size_t i = 0; i < BlockPool::kClasses; ++i) {
      if (BlockPool::cache_[i] != nullptr) BlockDepot::Of(i).GiveBack(BlockPool::cache_[i]);
      BlockPool::cache_[i] = nullptr;
    }
    ended_ = true;
  }
  // False in a thread whose thread_local objects are being destroyed: it must cache no more.
  static bool Touch() {
    if (ended_) return false;
    static thread_local CacheFlusher flusher;
    (void)flusher;
    return true;
  }

 private:
  static constinit thread_local bool ended_;
};

constinit thread_local bool CacheFlusher::ended_ = false;

void* BlockPool::AllocateSlow(size_t size_class) {
  BlockDepot& depot = BlockDepot::Of(size_class);
  const bool cached = CacheFlusher::Touch();
  Magazine* magazine = depot.TakeFull(cache_[size_class], size_class);
  void* block = magazine->blocks[--magazine->count];
  if (cached) {
    cache_[size_class] = magazine;
  } else {
    depot.GiveBack(magazine);
  }
  return Claim(block, kSmallestBytes << size_class);
}

void BlockPool::FreeSlow(void* block, size_t size_class) {
  BlockDepot& depot = BlockDepot::Of(size_class);
  const bool cached = CacheFlusher::Touch();
  Magazine* magazine = depot.TakeEmpty(cache_[size_class]);
  magazine->blocks[magazine->count++] = block;
  if (cached) {
    cache_[size_class] = magazine;
  } else {
    depot.GiveBack(magazine);
  }
}

void* BlockPool::AllocateLarge(size_t bytes) {
  return ::operator new (bytes, std::align_val_t{kSmallestBytes});
}

void BlockPool::FreeLarge(void* block) {
  ::operator delete (block, std::align_val_t{kSmallestBytes});
}

#if defined(__SANITIZE_ADDRESS__)
void* BlockPool::Claim(void* block, size_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(block, bytes);
  return block;
}
void BlockPool::Disclaim(void* block, size_t bytes) { ASAN_POISON_MEMORY_REGION(block, bytes); }
#endif

}  // namespace pelton::internal
