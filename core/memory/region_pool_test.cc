#include "core/memory/region_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace pelton {
namespace {

TEST(RegionPoolTest, BlocksLieInRegionsAndOnCacheLines) {
  RegionPool pool("test");
  for (size_t size_bytes : {1, 64, 65, 1000, 65536, 1 << 20}) {
    void* block = pool.Allocate(size_bytes).value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
    EXPECT_NE(Locate(block, size_bytes).region, kPrivateRegion);
  }
}

TEST(RegionPoolTest, AFreedBlockServesTheNextRequestOfItsSize) {
  RegionPool pool("test");
  void* first = pool.Allocate(100000).value();
  pool.Free(first);
  EXPECT_EQ(pool.Allocate(100000).value(), first);
}

TEST(RegionPoolTest, LeavesAForeignBlockAlone) {
  RegionPool pool("test");
  int foreign = 0;
  EXPECT_FALSE(pool.FreeIfOwned(&foreign));
  EXPECT_TRUE(pool.FreeIfOwned(pool.Allocate(1).value()));
}

// The parent has not become a rank, and the child may become one, as a launcher's does.
TEST(RegionPoolTest, WhatAForkedChildWritesToABlockStaysItsOwn) {
  RegionPool pool("test");
  const size_t bytes = 4096;
  auto* const block = static_cast<char*>(pool.Allocate(bytes).value());
  std::memset(block, 1, bytes);
  const pid_t child = fork();
  if (child == 0) {
    bool holds = block[0] == 1 && IsUnshared(Locate(block, bytes).region);
    std::memset(block, 2, bytes);
    pool.Free(block);
    holds = holds && pool.Allocate(bytes).value() == block;
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(block[0] == 2 ? 0 : 1);
    int status = -1;
    waitpid(grandchild, &status, 0);
    _exit(holds && status == 0 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(block[0], 1);
  EXPECT_FALSE(IsUnshared(Locate(block, bytes).region));
}

TEST(RegionPoolTest, LiveBlocksNeverOverlap) {
  RegionPool pool("test");
  std::mt19937 random(7);
  struct Live {
    char* block;
    size_t size_bytes;
    char mark;
  };
  std::vector<Live> live;
  for (int step = 0; step < 2000; ++step) {
    if (live.size() < 50 || random() % 2 == 0) {
      const size_t size_bytes = 1 + random() % 100000;
      char* block = static_cast<char*>(pool.Allocate(size_bytes).value());
      live.push_back({block, size_bytes, static_cast<char>(step)});
      std::memset(block, live.back().mark, size_bytes);
    } else {
      const size_t index = random() % live.size();
      const Live& chosen = live[index];
      ASSERT_EQ(chosen.block[0], chosen.mark);
      ASSERT_EQ(chosen.block[chosen.size_bytes - 1], chosen.mark);
      pool.Free(chosen.block);
      live.erase(live.begin() + static_cast<long>(index));
    }
  }
}

// Blocks of a new pool follow each other in its first region.
TEST(RegionPoolTest, WastesAtMostAQuarter) {
  for (size_t size_bytes = 256; size_bytes < 3'000'000; size_bytes = size_bytes * 3 / 2) {
    RegionPool pool("test");
    auto* const first = static_cast<char*>(pool.Allocate(size_bytes).value());
    auto* const second = static_cast<char*>(pool.Allocate(size_bytes).value());
    EXPECT_GE(second - first, static_cast<ptrdiff_t>(size_bytes));
    EXPECT_LE(second - first, static_cast<ptrdiff_t>(size_bytes * 5 / 4 + 64)) << size_bytes;
  }
}

TEST(RegionPoolTest, ABlockLargerThanARegionGetsItsOwn) {
  RegionPool pool("test");
  const size_t size_bytes = size_t{100} << 20;
  void* block = pool.Allocate(size_bytes).value();
  EXPECT_NE(Locate(block, size_bytes).region, kPrivateRegion);
}

TEST(RegionPoolTest, EveryObserverSeesEveryRegionOnceWhileItsOwnerLives) {
  RegionPool pool("test");
  ASSERT_TRUE(pool.Allocate(10).ok());
  std::array<std::multiset<uint32_t>, 2> seen;
  std::array<std::shared_ptr<int>, 2> owners = {std::make_shared<int>(), std::make_shared<int>()};
  for (size_t i = 0; i < 2; ++i) {
    pool.AddObserver(owners[i],
                     [&, i](const Region& region) { seen[i].insert(region.id().value()); });
    EXPECT_EQ(seen[i].size(), 1u);
  }
  ASSERT_TRUE(pool.Allocate(size_t{70} << 20).ok());
  EXPECT_EQ(seen[0].size(), 2u) << "beside a younger one";
  EXPECT_EQ(std::set<uint32_t>(seen[0].begin(), seen[0].end()).size(), 2u);
  owners[1].reset();
  ASSERT_TRUE(pool.Allocate(size_t{70} << 20).ok());
  EXPECT_EQ(seen[0].size(), 3u);
  EXPECT_EQ(seen[1].size(), 2u);
}

TEST(RegionPoolTest, LargeBlocksWasteNoRestOfARegion) {
  RegionPool pool("test");
  ASSERT_TRUE(pool.Allocate(1000).ok());
  const auto owner = std::make_shared<int>();
  size_t reserved_bytes = 0;
  pool.AddObserver(owner, [&](const Region& region) { reserved_bytes += region.size_bytes(); });
  const size_t before = reserved_bytes;
  const size_t size_bytes = size_t{40} << 20;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(pool.Allocate(size_bytes).ok());
  EXPECT_EQ(reserved_bytes - before, 4 * size_bytes);
  ASSERT_TRUE(pool.Allocate(1000).ok());
  EXPECT_EQ(reserved_bytes - before, 4 * size_bytes) << "the first region goes on";
}

TEST(RegionPoolTest, AnOwnerThatEndsWhileItsObserverIsCalledMayUseThePool) {
  RegionPool pool("test");
  void* block = pool.Allocate(10).value();
  int ended = 0;
  std::shared_ptr<void> owner(&block, [&](void*) {
    pool.Free(block);
    ++ended;
  });
  bool is_first = true;
  pool.AddObserver(owner, [&](const Region&) {
    if (!std::exchange(is_first, false)) owner.reset();
  });
  ASSERT_TRUE(pool.Allocate(size_t{70} << 20).ok());
  EXPECT_EQ(ended, 1);
}

TEST(RegionPoolTest, RefusesSizeZero) {
  RegionPool pool("test");
  EXPECT_EQ(pool.Allocate(0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pelton
