#include "backend/link/trainer_regions.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/process_limits.h"
#include "core/base/sharing.h"
#include "core/base/status.h"

namespace pelton {
namespace {

using FileId = std::pair<uint64_t, uint64_t>;  // device and inode

// The trainers' regions of this process. A registry in the sense of the style guide.
absl::StatusOr<std::shared_ptr<const Region>> OpenOnce(int descriptor) {
  static auto* const regions = new LiveTable<FileId, const Region>;  // outlives every connection
  struct stat file;
  if (fstat(descriptor, &file) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a trainer's region: fstat: ", ErrorText(errno)));
  }
  return regions->FindOrMake({file.st_dev, file.st_ino},
                             [descriptor]() -> absl::StatusOr<std::shared_ptr<const Region>> {
                               return Region::Open(descriptor, "a trainer's");
                             });
}

}  // namespace

absl::Status TrainerRegions::Enter(RegionId number, const std::vector<Descriptor>& descriptors) {
  if (descriptors.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "region ", number.value(), " came with ", descriptors.size(),
        " descriptors, not 1; start the trainer and the daemon from one installation"));
  }
  ASSIGN_OR_RETURN(Pointer open, OpenOnce(descriptors.front().get()));
  const Region* const region = open.get();
  if (const Pointer known = Find(number); known != nullptr) {
    if (known.get() == region) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("region ", number.value(),
                     " is registered already, with other memory; deregister that first"));
  }
  if (absl::Status told = peers_.tell(*open); !told.ok() && !absl::IsUnimplemented(told)) {
    return told;
  }
  Pointer entered(region, [forget = peers_.forget, open = std::move(open)](const Region* last) {
    forget(last->id());
  });
  if (regions_.Enter(number.value(), std::move(entered), kMostRegions)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(kMostRegions, " regions are registered already; deregister one first"));
}

void TrainerRegions::Erase(RegionId number) { (void)regions_.Take(number.value()); }

TrainerRegions::Pointer TrainerRegions::Find(RegionId number) const {
  return regions_.Find(number.value()).value_or(nullptr);
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
  return regions_.AnyOf([](const Pointer& region) { return IsUnshared(region->id()); });
}

}  // namespace pelton
