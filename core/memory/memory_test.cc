#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "core/base/fork.h"
#include "core/memory/dtype.h"
#include "core/memory/region.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

TEST(DTypeTest, EveryTypeHasASizeAndAName) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_GT(SizeOf(dtype), 0u);
    EXPECT_FALSE(NameOf(dtype).empty());
  }
  EXPECT_EQ(SizeOf(DType::kBFloat16), 2u);
  EXPECT_EQ(NameOf(DType::kInt64), "int64");
}

TEST(RegionTest, LocatesAddressesInsideAndOutside) {
  auto region = Region::Create(10000, "test").value();
  EXPECT_EQ(region->size_bytes(), 12288u);
  const Location inside = Locate(region->data() + 100, 50);
  EXPECT_EQ(inside, (Location{region->id(), 100}));
  EXPECT_EQ(Resolve(inside, 50).value(), region->data() + 100);

  int on_stack = 0;
  const Location outside = Locate(&on_stack, sizeof on_stack);
  EXPECT_EQ(outside.region, kPrivateRegion);
  EXPECT_EQ(Resolve(outside, 4).value(), reinterpret_cast<std::byte*>(&on_stack));
}

TEST(RegionTest, ASpanThatLeavesTheRegionIsNotInIt) {
  auto region = Region::Create(4096, "test").value();
  EXPECT_EQ(Locate(region->data() + 4000, 97).region, kPrivateRegion);
  EXPECT_EQ(Resolve({region->id(), 4000}, 97).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(RegionTest, IsGoneFromTheTableAfterItsDestruction) {
  auto region = Region::Create(4096, "test").value();
  const RegionId id = region->id();
  region.reset();
  EXPECT_EQ(Resolve({id, 0}, 1).status().code(), absl::StatusCode::kNotFound);
}

// A thread that has found a region finds another one at the same place, and none where that is
// gone.
TEST(RegionTest, IsFoundAsTheTableIsNow) {
  std::vector<std::byte> memory(8192);
  auto whole = Region::Adopt(memory.data(), memory.size(), "whole");
  std::byte* const later = memory.data() + 5000;
  EXPECT_EQ(Locate(later, 8), (Location{whole->id(), 5000}));
  auto part = Region::Adopt(memory.data() + 4096, 4096, "part");
  EXPECT_EQ(Locate(later, 8), (Location{part->id(), 904}));
  EXPECT_EQ(Locate(memory.data(), 8), (Location{whole->id(), 0}));
  EXPECT_EQ(Locate(later, 8), (Location{part->id(), 904})) << "the inner one, of the two seen last";
  const RegionId gone = part->id();
  EXPECT_EQ(Resolve({gone, 904}, 8).value(), later);
  part.reset();
  EXPECT_EQ(Resolve({gone, 904}, 8).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Locate(later, 8), (Location{whole->id(), 5000}));
  whole.reset();
  EXPECT_EQ(Locate(later, 8), (Location{kPrivateRegion, reinterpret_cast<uintptr_t>(later)}));
}

TEST(RegionTest, AnotherMappingOfItsDescriptorSeesTheSameBytes) {
  auto region = Region::Create(4096, "test").value();
  void* other = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, region->descriptor(), 0);
  ASSERT_NE(other, MAP_FAILED);
  std::memcpy(region->data(), "pelton", 7);
  EXPECT_STREQ(static_cast<const char*>(other), "pelton");
  munmap(other, 4096);
}

TEST(RegionTest, OpenedByItsDescriptorItIsARegionOfItsOwnOverTheSameBytes) {
  auto region = Region::Create(8192, "test").value();
  const int descriptor = DescriptorOf(region->id()).value();
  auto opened = Region::Open(descriptor, "of another process").value();
  close(descriptor);
  EXPECT_NE(opened->id(), region->id());
  EXPECT_EQ(opened->size_bytes(), 8192u);
  region->data()[5000] = std::byte{7};
  EXPECT_EQ(opened->data()[5000], std::byte{7});
  EXPECT_EQ(Locate(opened->data() + 5000, 1), (Location{opened->id(), 5000}));
  region.reset();
  EXPECT_EQ(opened->data()[5000], std::byte{7}) << "it keeps the memory";
}

TEST(RegionTest, OnlySealedMemoryIsOpened) {
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, 4096), 0);
  EXPECT_EQ(Region::Open(unsealed, "test").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Region::Open(-1, "test").status().code(), absl::StatusCode::kInvalidArgument);
  close(unsealed);
}

TEST(RegionTest, AdoptedMemoryHasNoDescriptor) {
  std::byte memory[64];
  auto region = Region::Adopt(memory, sizeof memory, "test");
  const RegionId id = region->id();
  EXPECT_EQ(DescriptorOf(id).status().code(), absl::StatusCode::kFailedPrecondition);
  region.reset();
  EXPECT_EQ(DescriptorOf(id).status().code(), absl::StatusCode::kNotFound);
}

TEST(RegionTest, CannotShrinkUnderAPeer) {
  auto region = Region::Create(8192, "test").value();
  EXPECT_NE(ftruncate(region->descriptor(), 4096), 0);
}

// A thread goes on writing while the pages are copied: none of that is lost.
TEST(RegionTest, UnsharedMemoryKeepsItsBytesAndAPeersWritesStayOut) {
  constexpr size_t kBytes = size_t{256} << 12;
  auto region = Region::Create(kBytes, "test").value();
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->descriptor(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const peer = static_cast<std::byte*>(mapped);
  peer[5] = std::byte{3};  // before: that is part of the bytes
  std::atomic<bool> stop = false;
  auto* const counter = new (region->data() + kBytes / 2) std::atomic<uint64_t>(0);
  uint64_t written = 0;
  std::thread writer([&] {
    while (!stop.load()) {
      counter->fetch_add(1);
      ++written;
    }
  });
  EXPECT_FALSE(IsUnshared(region->id()));
  EXPECT_EQ(Unshare(region->id()), absl::OkStatus());
  EXPECT_TRUE(IsUnshared(region->id()));
  std::memset(peer, 9, kBytes);
  stop.store(true);
  writer.join();
  EXPECT_EQ(counter->load(), written);
  EXPECT_EQ(region->data()[5], std::byte{3});
  EXPECT_EQ(region->data()[kBytes - 1], std::byte{0});
  EXPECT_EQ(Unshare(region->id()), absl::OkStatus());  // once more changes nothing
  const RegionId id = region->id();
  region.reset();
  EXPECT_FALSE(IsUnshared(id));
  EXPECT_EQ(Unshare(id).code(), absl::StatusCode::kNotFound);
  munmap(mapped, kBytes);
}

// Ends the calling process with 0 if `holds`.
void EndWith(bool holds) { _exit(holds ? 0 : 1); }

bool EndsWell(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(RegionTest, WhatAForkedChildWritesStaysItsOwn) {
  WatchForks();
  auto region = Region::Create(8192, "test").value();
  std::byte* const data = region->data();
  data[0] = std::byte{1};
  data[4096] = std::byte{2};
  const pid_t child = fork();
  if (child == 0) {
    bool holds = data[0] == std::byte{1} && data[4096] == std::byte{2};
    data[0] = std::byte{3};
    const pid_t grandchild = fork();
    if (grandchild == 0) EndWith(data[0] == std::byte{3} && data[4096] == std::byte{2});
    holds = holds && EndsWell(grandchild);
    // The table is no longer locked.
    EndWith(holds && Locate(data, 8192).region == region->id() && Region::Create(1, "own").ok());
  }
  EXPECT_TRUE(EndsWell(child));
  EXPECT_EQ(data[0], std::byte{1});
  data[0] = std::byte{4};
  void* peer = mmap(nullptr, 8192, PROT_READ, MAP_SHARED, region->descriptor(), 0);
  ASSERT_NE(peer, MAP_FAILED);
  EXPECT_EQ(*static_cast<std::byte*>(peer), std::byte{4}) << "the parent's region is still shared";
  munmap(peer, 8192);
}

TEST(RegionTest, AdoptedMemoryIsLocatedAndLeftAlone) {
  float values[4] = {1, 2, 3, 4};
  auto region = Region::Adopt(values, sizeof values, "adopted");
  EXPECT_EQ(region->descriptor(), -1);
  EXPECT_EQ(Locate(values + 1, 8), (Location{region->id(), 4}));
  const RegionId id = region->id();
  region.reset();
  EXPECT_FALSE(Resolve({id, 0}, 4).ok());
  EXPECT_EQ(values[3], 4);
}

TEST(RegionTest, NumbersThatComeRoundPassByLivingRegions) {
  auto first = Region::Create(4096, "first").value();
  const RegionId id = first->id();
  internal::SetNextRegionId(RegionId(UINT32_MAX));
  auto last = Region::Create(4096, "last").value();
  EXPECT_EQ(last->id(), RegionId(UINT32_MAX));
  auto wrapped = Region::Create(4096, "wrapped").value();
  EXPECT_NE(wrapped->id(), kPrivateRegion);
  internal::SetNextRegionId(id);
  auto next = Region::Create(4096, "next").value();
  EXPECT_NE(next->id(), id);
  EXPECT_EQ(Resolve({id, 0}, 1).value(), first->data());
  EXPECT_EQ(Resolve({next->id(), 0}, 1).value(), next->data());
}

TEST(RegionTest, RefusesSizeZero) {
  EXPECT_EQ(Region::Create(0, "empty").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pelton
