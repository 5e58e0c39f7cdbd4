#include "core/actor/block_pool.h"

#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace pelton::internal {
namespace {

TEST(BlockPoolTest, BlocksAreAlignedAndDistinct) {
  for (size_t bytes : {1, 64, 65, 128, 200, 512, 1024, 5000}) {
    std::set<void*> blocks;
    for (int i = 0; i < 300; ++i) {
      void* block = BlockPool::Allocate(bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % BlockPool::kSmallestBytes, 0u);
      std::memset(block, i, bytes);
      EXPECT_TRUE(blocks.insert(block).second);
    }
    for (void* block : blocks) BlockPool::Free(block, bytes);
  }
}

TEST(BlockPoolTest, AFreedBlockIsTheNextOneUsed) {
  void* first = BlockPool::Allocate(64);
  BlockPool::Free(first, 64);
  void* second = BlockPool::Allocate(64);
  EXPECT_EQ(first, second);
  BlockPool::Free(second, 64);
}

// What one thread allocates and another frees comes back: the set of blocks in use stops growing.
TEST(BlockPoolTest, BlocksTravelBackBetweenThreads) {
  std::set<void*> seen;
  constexpr size_t kRoundBlocks = 1000;
  for (int round = 0; round < 50; ++round) {
    std::vector<void*> blocks;
    for (size_t i = 0; i < kRoundBlocks; ++i) blocks.push_back(BlockPool::Allocate(256));
    seen.insert(blocks.begin(), blocks.end());
    std::thread([&] {
      for (void* block : blocks) BlockPool::Free(block, 256);
    }).join();
  }
  EXPECT_LE(seen.size(), 3 * kRoundBlocks);
}

}  // namespace
}  // namespace pelton::internal
