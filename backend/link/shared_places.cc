#include "backend/link/shared_places.h"

#include <cstring>

#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::byte*> SharedPlaces::Reach(SlotId slot, void* data, uint64_t size_bytes) {
  Slot& own = slots_[slot.value()];
  own.original = nullptr;
  const RegionId region = Locate(data, size_bytes).region;
  if (region != own.known || IsUnshared(region)) {
    ASSIGN_OR_RETURN(const bool is_told, IsTold(region));
    own.known = is_told ? region : kPrivateRegion;
  }
  if (own.known != kPrivateRegion) return static_cast<std::byte*>(data);
  ASSIGN_OR_RETURN(std::byte* const copy, CopyOf(own, size_bytes));
  std::memcpy(copy, data, size_bytes);
  own.original = static_cast<std::byte*>(data);
  return copy;
}

absl::StatusOr<std::byte*> SharedPlaces::Zeros(SlotId slot, uint64_t size_bytes) {
  Slot& own = slots_[slot.value()];
  own.original = nullptr;
  own.known = kPrivateRegion;
  ASSIGN_OR_RETURN(std::byte* const copy, CopyOf(own, size_bytes));
  std::memset(copy, 0, size_bytes);
  return copy;
}

absl::StatusOr<std::byte*> SharedPlaces::CopyOf(Slot& slot, uint64_t size_bytes) {
  if (slot.copy == nullptr || IsUnshared(slot.copy->id())) {
    ASSIGN_OR_RETURN(slot.copy, Region::Create(size_bytes, "a tensor's copy"));
  }
  RETURN_IF_ERROR(IsTold(slot.copy->id()).status());
  slot.size_bytes = size_bytes;
  return slot.copy->data();
}

absl::StatusOr<bool> SharedPlaces::IsTold(RegionId region) {
  if (region == kPrivateRegion || IsUnshared(region)) return false;
  std::atomic<uint32_t>& told = told_[region.value() % told_.size()];
  if (told.load(std::memory_order_acquire) == region.value()) return true;
  const absl::StatusOr<int> number = DescriptorOf(region);
  if (absl::IsFailedPrecondition(number.status())) return false;  // of somebody else's memory
  RETURN_IF_ERROR(number.status());
  const Descriptor descriptor(*number);
  RETURN_IF_ERROR(tell_(region, descriptor.get()));
  told.store(region.value(), std::memory_order_release);
  return true;
}

void SharedPlaces::BringBack() {
  for (Slot& slot : slots_) {
    if (slot.original == nullptr) continue;
    std::memcpy(slot.original, slot.copy->data(), slot.size_bytes);
  }
}

void SharedPlaces::TakeBack() {
  // One that is gone is nobody's to see; what the kernel refuses to copy stays as it is.
  for (const Slot& slot : slots_) {
    if (slot.known != kPrivateRegion) Unshare(slot.known).IgnoreError();
    if (slot.copy != nullptr) Unshare(slot.copy->id()).IgnoreError();
  }
}

}  // namespace pelton
