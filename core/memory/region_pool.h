// Blocks of shared memory of any size, kept for the next user.
#ifndef PELTON_CORE_MEMORY_REGION_POOL_H_
#define PELTON_CORE_MEMORY_REGION_POOL_H_

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "core/base/sync.h"
#include "core/memory/region.h"

namespace pelton {

// Cuts regions into blocks by size class and keeps freed blocks for the next request of their
// class: in steady state a training step takes no memory from the kernel and faults no page. A
// block may be larger than asked for by at most a quarter, and at most a quarter of a region stays
// uncut, because a large block has a region of its own. Threads: any. Owns: its regions, until it
// dies.
class RegionPool {
 public:
  // Called once for each region that the pool makes, before any of its blocks is given out, with
  // the pool's lock held: it must not call the pool.
  using RegionObserver = absl::AnyInvocable<void(const Region&)>;

  explicit RegionPool(std::string name) : name_(std::move(name)) {}
  RegionPool(const RegionPool&) = delete;
  RegionPool& operator=(const RegionPool&) = delete;

  // A block of at least `size_bytes`, on a cache line, its bytes undefined. Blocks: never for long.
  // Errors: InvalidArgument: size 0; ResourceExhausted: the kernel gives no memory.
  absl::StatusOr<void*> Allocate(size_t size_bytes);
  // Gives back a block of Allocate.
  void Free(void* block);
  // The same for a block that may be somebody else's: false, and no effect, if it is.
  bool FreeIfOwned(void* block);

  // Also calls `observer` at once for every region there is. It is called beside the others, for as
  // long as `owner` lives, which is kept meanwhile and let go of without the pool's lock, because
  // the end of its last owner may take long, or give blocks back.
  void AddObserver(std::weak_ptr<void> owner, RegionObserver observer);

 private:
  static constexpr int kClassCount = 160;

  using Owners = std::vector<std::shared_ptr<void>>;
  struct Observer {
    std::weak_ptr<void> owner;
    RegionObserver see;
  };

  // `used` are the owners of the observers that were called.
  absl::StatusOr<std::byte*> Carve(size_t block_bytes, Owners& used)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::byte*> MakeRegion(size_t region_bytes, Owners& used)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  Mutex mutex_;
  std::vector<Observer> observers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Region>> regions_ ABSL_GUARDED_BY(mutex_);
  std::byte* uncut_ ABSL_GUARDED_BY(mutex_) = nullptr;
  size_t uncut_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::array<std::vector<void*>, kClassCount> free_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<void*, int> class_of_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton

#endif  // PELTON_CORE_MEMORY_REGION_POOL_H_
