#include "core/memory/region_pool.h"

#include <algorithm>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr size_t kRegionBytes = size_t{64} << 20;
constexpr size_t kLargestSharedBytes = kRegionBytes / 4;  // of a block that shares a region
constexpr int kSmallestShift = 6;                         // one cache line
constexpr int kStepsPerDoubling = 4;  // so that at most a quarter of a block is wasted

// Classes are 64 * 2^k * {4, 5, 6, 7} / 4 bytes.
size_t BytesOfClass(int index) {
  const size_t base = size_t{1} << (kSmallestShift + index / kStepsPerDoubling);
  const size_t bytes = base + base / kStepsPerDoubling * (index % kStepsPerDoubling);
  const size_t line = limits::kSlotAlignmentBytes;
  return (bytes + line - 1) / line * line;
}

int ClassOf(size_t size_bytes) {
  if (size_bytes <= limits::kSlotAlignmentBytes) return 0;
  const int doubling = static_cast<int>(absl::bit_width(size_bytes - 1)) - 1 - kSmallestShift;
  int index = doubling * kStepsPerDoubling;
  while (BytesOfClass(index) < size_bytes) ++index;
  return index;
}

}  // namespace

absl::StatusOr<void*> RegionPool::Allocate(size_t size_bytes) {
  if (size_bytes == 0)
    return absl::InvalidArgumentError("size_bytes: 0; a block has at least one byte");
  const int index = ClassOf(size_bytes);
  if (index >= kClassCount) {
    return absl::ResourceExhaustedError(absl::StrCat("size_bytes: ", size_bytes,
                                                     " is more than the largest block, ",
                                                     BytesOfClass(kClassCount - 1), " bytes"));
  }
  Owners used;  // declared before the lock: go after it
  MutexLock lock(&mutex_);
  void* block = nullptr;
  if (std::vector<void*>& free = free_[index]; !free.empty()) {
    block = free.back();
    free.pop_back();
  } else {
    ASSIGN_OR_RETURN(block, Carve(BytesOfClass(index), used));
    class_of_[block] = index;
  }
  return block;
}

void RegionPool::Free(void* block) {
  PELTON_CHECK(FreeIfOwned(block)) << "a block that is not of pool " << name_;
}

bool RegionPool::FreeIfOwned(void* block) {
  MutexLock lock(&mutex_);
  auto found = class_of_.find(block);
  if (found == class_of_.end()) return false;
  free_[found->second].push_back(block);
  return true;
}

absl::StatusOr<std::byte*> RegionPool::Carve(size_t block_bytes, Owners& used) {
  if (block_bytes > kLargestSharedBytes) return MakeRegion(block_bytes, used);
  if (block_bytes > uncut_bytes_) {
    ASSIGN_OR_RETURN(uncut_, MakeRegion(kRegionBytes, used));
    uncut_bytes_ = kRegionBytes;
  }
  std::byte* block = uncut_;
  uncut_ += block_bytes;
  uncut_bytes_ -= block_bytes;
  return block;
}

absl::StatusOr<std::byte*> RegionPool::MakeRegion(size_t region_bytes, Owners& used) {
  ASSIGN_OR_RETURN(std::unique_ptr<Region> region,
                   Region::Create(region_bytes, absl::StrCat(name_, "-", regions_.size())));
  std::erase_if(observers_, [](const Observer& observer) { return observer.owner.expired(); });
  for (Observer& observer : observers_) {
    std::shared_ptr<void> owner = observer.owner.lock();
    if (owner == nullptr) continue;  // it has just ended
    observer.see(*region);
    used.push_back(std::move(owner));
  }
  regions_.push_back(std::move(region));
  return regions_.back()->data();
}

void RegionPool::AddObserver(std::weak_ptr<void> owner, RegionObserver observer) {
  const std::shared_ptr<void> used = owner.lock();  // declared before the lock: goes after it
  if (used == nullptr) return;
  MutexLock lock(&mutex_);
  for (const std::unique_ptr<Region>& region : regions_) observer(*region);
  observers_.push_back({std::move(owner), std::move(observer)});
}

}  // namespace pelton
