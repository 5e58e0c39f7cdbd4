#include "backend/link/trainer_regions.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/descriptor_limit.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// The trainers' regions of this process, by their files. A registry in the sense of the style
// guide. Threads: any. Owns: its index, not the regions.
struct OpenRegions {
  using FileId = std::pair<uint64_t, uint64_t>;  // device and inode

  static OpenRegions& Get() {
    static OpenRegions* const regions = new OpenRegions;  // outlives every connection
    return *regions;
  }

  absl::StatusOr<std::shared_ptr<const Region>> Open(int descriptor) {
    struct stat file;
    if (fstat(descriptor, &file) != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("fstat: ", ErrorText(errno)));
    }
    MutexLock lock(&mutex);
    std::weak_ptr<const Region>& entry = by_file[{file.st_dev, file.st_ino}];
    if (std::shared_ptr<const Region> open = entry.lock()) return open;
    absl::StatusOr<std::unique_ptr<Region>> opened = Region::Open(descriptor, "a trainer's");
    std::erase_if(by_file, [&](const auto& other) {
      return other.second.expired() && &other.second != &entry;
    });
    RETURN_IF_ERROR(opened.status());
    const std::shared_ptr<const Region> region = *std::move(opened);
    entry = region;
    return region;
  }

  Mutex mutex;
  std::map<FileId, std::weak_ptr<const Region>> by_file ABSL_GUARDED_BY(mutex);
};

}  // namespace

absl::Status TrainerRegions::Enter(RegionId number, const std::vector<Descriptor>& descriptors) {
  if (descriptors.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("region ", number.value(), " came with ", descriptors.size(), " descriptors"));
  }
  ASSIGN_OR_RETURN(Pointer open, OpenRegions::Get().Open(descriptors.front().get()));
  const Region* const region = open.get();
  if (const Pointer known = Find(number); known != nullptr) {
    if (known.get() == region) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("region ", number.value(), " is registered already, with other memory"));
  }
  if (absl::Status told = peers_.tell(*open); !told.ok() && !absl::IsUnimplemented(told)) {
    return told;
  }
  Pointer entered(region, [forget = peers_.forget, open = std::move(open)](const Region* last) {
    forget(last->id());
  });
  MutexLock lock(&mutex_);
  if (regions_.size() >= kMostRegions) {
    return absl::ResourceExhaustedError(absl::StrCat(kMostRegions, " regions are registered"));
  }
  regions_[number.value()] = std::move(entered);
  return absl::OkStatus();
}

void TrainerRegions::Erase(RegionId number) {
  Pointer erased;  // goes without the lock
  MutexLock lock(&mutex_);
  const auto found = regions_.find(number.value());
  if (found == regions_.end()) return;
  erased = std::move(found->second);
  regions_.erase(found);
}

TrainerRegions::Pointer TrainerRegions::Find(RegionId number) const {
  MutexLock lock(&mutex_);
  const auto found = regions_.find(number.value());
  return found == regions_.end() ? nullptr : found->second;
}

absl::StatusOr<TrainerRegions::Place> TrainerRegions::PlaceOf(Location trainers,
                                                              uint64_t size_bytes,
                                                              absl::string_view what) const {
  Pointer region = Find(trainers.region);
  if (region == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": region ", trainers.region.value(),
                                                   " is not registered with the daemon"));
  }
  const uint64_t room = region->size_bytes();
  if (trainers.offset > room || size_bytes > room - trainers.offset) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", size_bytes, " bytes at ",
                                                   trainers.offset, " of a region of ", room));
  }
  if (IsUnshared(region->id())) {
    return absl::UnavailableError(
        absl::StrCat(what, ": region ", trainers.region.value(),
                     " was taken back from a rank that had stopped while it wrote there"));
  }
  const Location here{region->id(), trainers.offset};
  return Place{std::move(region), here};
}

bool TrainerRegions::IsAnyUnshared() const {
  MutexLock lock(&mutex_);
  return std::any_of(regions_.begin(), regions_.end(),
                     [](const auto& entry) { return IsUnshared(entry.second->id()); });
}

}  // namespace pelton
