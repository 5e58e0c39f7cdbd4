#include "core/memory/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/fork.h"
#include "core/base/limits.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"
#include "core/base/sync.h"

namespace pelton {
namespace {

absl::Status SystemError(absl::string_view call, const std::string& name, size_t size_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat(call, " for region '", name, "' of ", size_bytes, " bytes: ", ErrorText(errno)));
}

// Gives every page a copy of its own, where the pages are mapped privately. Other threads may use
// the bytes meanwhile: none of their writes is lost.
void CopyPages(std::byte* data, size_t size_bytes) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, of Linux 5.14
  if (madvise(data, size_bytes, kPopulateWrite) == 0) return;
  for (size_t at = 0; at < size_bytes; at += limits::kRegionAlignmentBytes) {
    // An exchange for the same value is a write that changes nothing.
    auto* const byte = reinterpret_cast<unsigned char*>(data + at);
    unsigned char value = __atomic_load_n(byte, __ATOMIC_RELAXED);
    __atomic_compare_exchange_n(byte, &value, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
}

// A region as it was when a thread looked for it, so that the thread finds it again without the
// table's lock, which every operation would take twice and more.
// Threads: its own. Owns: nothing.
struct Seen {
  uint64_t changes = 0;  // of the table then; 0: there is none
  RegionId id;           // kPrivateRegion: what lies before all regions
  std::byte* data = nullptr;
  size_t size_bytes = 0;
  size_t own_bytes = 0;  // to where another region begins

  bool Holds(uint64_t offset, size_t bytes) const {
    return offset <= size_bytes && bytes <= size_bytes - offset;
  }
};

// The last two: an operation's source and target.
// Threads: its own. Owns: nothing.
class LastSeen {
 public:
  const Seen* Find(uint64_t changes, RegionId id) const {
    for (const Seen& seen : seen_) {
      if (seen.changes == changes && seen.id == id) return &seen;
    }
    return nullptr;
  }
  const Seen* Find(uint64_t changes, uintptr_t address) const {
    for (const Seen& seen : seen_) {
      const uint64_t offset = address - reinterpret_cast<uintptr_t>(seen.data);
      if (seen.changes == changes && offset < seen.own_bytes) return &seen;
    }
    return nullptr;
  }
  const Seen* Note(const Seen& seen) {
    const Seen* const noted = &(seen_[next_] = seen);
    next_ = 1 - next_;
    return noted;
  }

 private:
  Seen seen_[2];
  size_t next_ = 0;
};
thread_local LastSeen last_seen;

// The live regions of this process. A registry in the sense of the style guide: the one kind of
// global allowed. Threads: any. Owns: its index, not the regions.
class RegionTable {
 public:
  static RegionTable& Get() {
    static RegionTable* const table = [] {
      AddForkSteps({.before = [] { Get().LockForFork(); },
                    .in_parent = [] { Get().UnlockAfterFork(); },
                    .in_child = [](bool) { Get().BePrivate(); }});
      return new RegionTable;  // outlives every static region
    }();
    return *table;
  }

  RegionId Insert(const Region* region) {
    MutexLock lock(&mutex_);
    // Copies of what is sent are regions, too, so that numbers may come round within a long job.
    while (next_id_ == kPrivateRegion.value() || by_id_.contains(next_id_)) ++next_id_;
    const RegionId id(next_id_++);
    changes_.fetch_add(1, std::memory_order_release);
    by_id_[id.value()] = region;
    by_address_[reinterpret_cast<uintptr_t>(region->data())] = {id, region};
    return id;
  }

  void SetNextId(RegionId id) {
    MutexLock lock(&mutex_);
    next_id_ = id.value();
  }

  void Erase(const Region* region) {
    MutexLock lock(&mutex_);
    changes_.fetch_add(1, std::memory_order_release);
    by_id_.erase(region->id().value());
    by_address_.erase(reinterpret_cast<uintptr_t>(region->data()));
    unshared_.erase(region->id().value());
  }

  // With the lock, so that the region stays.
  absl::Status Unshare(RegionId id) {
    MutexLock lock(&mutex_);
    auto found = by_id_.find(id.value());
    if (found == by_id_.end()) {
      return absl::NotFoundError(absl::StrCat("region ", id.value(), " does not exist"));
    }
    const Region& region = *found->second;
    if (region.descriptor() < 0 || unshared_.contains(id.value())) return absl::OkStatus();
    // Noted before the mapping changes, so that a thread that finds that a peer's bytes have not
    // arrived also finds this note.
    unshared_.insert(id.value());
    has_unshared_.store(true);
    void* const data = mmap(region.data(), region.size_bytes(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_FIXED, region.descriptor(), 0);
    if (data == MAP_FAILED) {
      unshared_.erase(id.value());
      return SystemError("mmap", region.name(), region.size_bytes());
    }
    CopyPages(region.data(), region.size_bytes());
    return absl::OkStatus();
  }

  absl::StatusOr<int> DescriptorOf(RegionId id) {
    MutexLock lock(&mutex_);
    auto found = by_id_.find(id.value());
    if (found == by_id_.end()) {
      return absl::NotFoundError(absl::StrCat("region ", id.value(), " does not exist"));
    }
    const Region& region = *found->second;
    if (region.descriptor() < 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("region '", region.name(), "': adopted memory cannot be shared"));
    }
    const int copy = fcntl(region.descriptor(), F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return SystemError("fcntl", region.name(), region.size_bytes());
    return copy;
  }

  bool IsUnshared(RegionId id) {
    if (!has_unshared_.load()) return false;
    MutexLock lock(&mutex_);
    return unshared_.contains(id.value());
  }

  // Regions do not come or go while the process forks.
  void LockForFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }
  void UnlockAfterFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }

  // In a forked child: what it writes stays its own, whether its parent is a rank or only becomes
  // one. It costs no copy, because the kernel copies a page at its first write. A region whose
  // mapping fails stays as it was. To a child that becomes a rank, and to its children, all of them
  // are memory that peers cannot reach.
  void BePrivate() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const auto& [id, region] : by_id_) {
      if (region->descriptor() < 0 || !unshared_.insert(id).second) continue;
      has_unshared_.store(true);
      mmap(region->data(), region->size_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
           region->descriptor(), 0);
    }
    mutex_.Unlock();
  }

  // A thread that has learnt a region's address or number also sees that the table has changed
  // since.
  Location Find(const void* data, size_t size_bytes) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    const Seen* seen = last_seen.Find(changes_.load(std::memory_order_acquire), address);
    if (seen == nullptr) seen = last_seen.Note(Look(address));
    const uint64_t offset = address - reinterpret_cast<uintptr_t>(seen->data);
    if (seen->id != kPrivateRegion && seen->Holds(offset, size_bytes)) return {seen->id, offset};
    return {kPrivateRegion, address};
  }

  absl::StatusOr<std::byte*> Address(Location location, size_t size_bytes) {
    const uint64_t changes = changes_.load(std::memory_order_acquire);
    const Seen* const seen = last_seen.Find(changes, location.region);
    if (seen != nullptr && seen->Holds(location.offset, size_bytes)) {
      return seen->data + location.offset;
    }
    MutexLock lock(&mutex_);
    auto found = by_id_.find(location.region.value());
    if (found == by_id_.end()) {
      return absl::NotFoundError(
          absl::StrCat("region ", location.region.value(), " does not exist"));
    }
    const Region& region = *found->second;
    const Seen looked = SeenOf(location.region, region);
    if (!looked.Holds(location.offset, size_bytes)) {
      return absl::OutOfRangeError(absl::StrCat("offset ", location.offset, " with ", size_bytes,
                                                " bytes is outside region '", region.name(),
                                                "' of ", region.size_bytes(), " bytes"));
    }
    last_seen.Note(looked);
    return region.data() + location.offset;
  }

 private:
  struct Entry {
    RegionId id;
    const Region* region;
  };

  // The region that begins last at or before `address`, or what lies before all.
  Seen Look(uintptr_t address) {
    MutexLock lock(&mutex_);
    const auto after = by_address_.upper_bound(address);
    if (after == by_address_.begin()) {
      const size_t own_bytes = after == by_address_.end() ? SIZE_MAX : after->first;
      return {changes_.load(std::memory_order_relaxed), kPrivateRegion, nullptr, 0, own_bytes};
    }
    const Entry& entry = std::prev(after)->second;
    return SeenOf(entry.id, *entry.region);
  }
  // Its number apart, because a region gets it once it is in the table.
  Seen SeenOf(RegionId id, const Region& region) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto address = reinterpret_cast<uintptr_t>(region.data());
    const auto next = by_address_.upper_bound(address);
    const size_t own_bytes =
        next == by_address_.end() ? UINTPTR_MAX - address : next->first - address;
    return {changes_.load(std::memory_order_relaxed), id, region.data(), region.size_bytes(),
            own_bytes};
  }

  Mutex mutex_;
  uint32_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint32_t, const Region*> by_id_ ABSL_GUARDED_BY(mutex_);
  std::map<uintptr_t, Entry> by_address_ ABSL_GUARDED_BY(mutex_);
  std::set<uint32_t> unshared_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_unshared_ = false;  // there ever was one: spares the lock
  std::atomic<uint64_t> changes_ = 1;       // of which regions there are
};

// The mapping is pre-faulted: a page fault in the middle of a reduction costs more than the
// addition.
absl::StatusOr<std::byte*> MapSealed(int descriptor, size_t size_bytes, const std::string& name) {
  if (ftruncate(descriptor, static_cast<off_t>(size_bytes)) != 0) {
    return SystemError("ftruncate", name, size_bytes);
  }
  if (fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return SystemError("sealing", name, size_bytes);
  }
  // Pages of a memfd are not reserved, and populating says nothing of those that are not to be had:
  // touching one would then end the process with SIGBUS.
  if (fallocate(descriptor, 0, 0, static_cast<off_t>(size_bytes)) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS) {
    return SystemError("fallocate", name, size_bytes);
  }
  void* data =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (data == MAP_FAILED) return SystemError("mmap", name, size_bytes);
  return static_cast<std::byte*>(data);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Region>> Region::Create(size_t size_bytes, const std::string& name) {
  if (size_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("size_bytes: 0 for region '", name, "'; a region has at least one byte"));
  }
  const size_t page = limits::kRegionAlignmentBytes;
  const size_t rounded_bytes = (size_bytes + page - 1) / page * page;
  const int descriptor = memfd_create(absl::StrCat("pelton-", name).substr(0, 200).c_str(),
                                      MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return SystemError("memfd_create", name, rounded_bytes);
  absl::StatusOr<std::byte*> data = MapSealed(descriptor, rounded_bytes, name);
  if (!data.ok()) {
    close(descriptor);
    return data.status();
  }
  return std::unique_ptr<Region>(new Region(*data, rounded_bytes, descriptor, name));
}

absl::StatusOr<std::unique_ptr<Region>> Region::Open(int descriptor, const std::string& name) {
  const int seals = fcntl(descriptor, F_GET_SEALS);
  struct stat file;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(descriptor, &file) != 0 ||
      file.st_size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("region '", name, "': no memory that is sealed against shrinking"));
  }
  const auto size_bytes = static_cast<size_t>(file.st_size);
  const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return SystemError("fcntl", name, size_bytes);
  void* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
  if (data == MAP_FAILED) {
    const absl::Status status = SystemError("mmap", name, size_bytes);
    close(copy);
    return status;
  }
  return std::unique_ptr<Region>(new Region(static_cast<std::byte*>(data), size_bytes, copy, name));
}

Region::Region(std::byte* data, size_t size_bytes, int descriptor, std::string name)
    : data_(data), size_bytes_(size_bytes), descriptor_(descriptor), name_(std::move(name)) {
  id_ = RegionTable::Get().Insert(this);
}

std::unique_ptr<Region> Region::Adopt(void* data, size_t size_bytes, const std::string& name) {
  return std::unique_ptr<Region>(new Region(static_cast<std::byte*>(data), size_bytes, -1, name));
}

Region::~Region() {
  RegionTable::Get().Erase(this);
  if (descriptor_ < 0) return;
  munmap(data_, size_bytes_);
  close(descriptor_);
}

Location Locate(const void* data, size_t size_bytes) {
  return RegionTable::Get().Find(data, size_bytes);
}

absl::StatusOr<std::byte*> Resolve(Location location, size_t size_bytes) {
  if (location.region == kPrivateRegion) {
    return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(location.offset));
  }
  return RegionTable::Get().Address(location, size_bytes);
}

absl::StatusOr<int> DescriptorOf(RegionId region) {
  return RegionTable::Get().DescriptorOf(region);
}

absl::Status Unshare(RegionId region) { return RegionTable::Get().Unshare(region); }

bool IsUnshared(RegionId region) { return RegionTable::Get().IsUnshared(region); }

void internal::SetNextRegionId(RegionId id) { RegionTable::Get().SetNextId(id); }

}  // namespace pelton
