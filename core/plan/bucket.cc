#include "core/plan/bucket.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<BucketStorage>> BucketStorage::Create(const Plan& plan,
                                                                     const std::string& name,
                                                                     DeviceQueue* device,
                                                                     uint64_t capacity_bytes) {
  const DeviceKind kind = device == nullptr ? DeviceKind::kHost : device->stream().device();
  for (const BucketLayout& bucket : plan.buckets()) {
    if (bucket.device.kind == kind && (device == nullptr || bucket.standalone.empty())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(plan.Describe(bucket.id), " is on ", NameOf(bucket.device.kind),
                     bucket.standalone.empty() ? "" : ", with tensors outside of it",
                     ", the model's buckets are on ", NameOf(kind)));
  }
  std::unique_ptr<BucketStorage> storage(new BucketStorage(plan, device));
  if (plan.flat_bytes() > 0) {
    RETURN_IF_ERROR(storage->MakeRegion(name, std::max(plan.flat_bytes(), capacity_bytes)));
  }
  storage->PlaceSlots();
  return storage;
}

std::unique_ptr<BucketStorage> BucketStorage::CreateToFollow(const Plan& plan) {
  return std::unique_ptr<BucketStorage>(new BucketStorage(plan, nullptr));
}

absl::StatusOr<std::unique_ptr<BucketStorage>> BucketStorage::CreateOver(
    const Plan& plan, std::unique_ptr<Region> region) {
  const size_t size_bytes = region == nullptr ? 0 : region->size_bytes();
  if (size_bytes < plan.flat_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("buckets: the plan takes ", plan.flat_bytes(),
                                                   " bytes, the memory has ", size_bytes));
  }
  std::unique_ptr<BucketStorage> storage(new BucketStorage(plan, nullptr));
  storage->region_ = std::move(region);
  storage->PlaceSlots();
  return storage;
}

absl::Status BucketStorage::MakeRegion(const std::string& name, uint64_t size_bytes) {
  if (device_ == nullptr) {
    ASSIGN_OR_RETURN(region_, Region::Create(size_bytes, name));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::byte* const memory, device_->Allocate(size_bytes));
  region_ = Region::Adopt(memory, size_bytes, name);
  return absl::OkStatus();
}

void BucketStorage::PlaceSlots() {
  const size_t slot_count = plan_.slots().size();
  addresses_.resize(slot_count, nullptr);
  spare_.resize(slot_count);
  for (size_t i = 0; i < slot_count; ++i) {
    const SlotLayout& slot = plan_.slots()[i];
    if (slot.standalone || region_ == nullptr) continue;
    addresses_[i] = region_->data() + slot.offset_bytes;
  }
}

bool BucketStorage::Fits(const Plan& plan) const {
  return device_ == nullptr && region_ != nullptr && plan.flat_bytes() <= region_->size_bytes();
}

void BucketStorage::TakeMemoryOf(BucketStorage& before) {
  region_ = std::move(before.region_);
  PlaceSlots();
  ZeroGaps();
}

// Codecs look at whole buckets, and sums of what was there would grow from round to round.
void BucketStorage::ZeroGaps() {
  for (const BucketLayout& bucket : plan_.buckets()) {
    std::byte* cursor = FlatOf(bucket.id);
    if (cursor == nullptr) continue;
    std::byte* const end = cursor + bucket.flat_count * SizeOf(bucket.dtype);
    for (SlotId slot : bucket.slots) {
      const SlotLayout& layout = plan_.slot(slot);
      if (layout.standalone) continue;
      std::memset(cursor, 0, static_cast<size_t>(DataOf(slot) - cursor));
      cursor = DataOf(slot) + layout.size_bytes;
    }
    std::memset(cursor, 0, static_cast<size_t>(end - cursor));
  }
}

BucketStorage::~BucketStorage() {
  if (device_ == nullptr || region_ == nullptr) return;
  std::byte* const memory = region_->data();
  region_.reset();
  device_->Release(memory);
}

absl::Status BucketStorage::PlaceZeros(SlotId slot) {
  const SlotLayout& layout = plan_.slot(slot);
  if (layout.size_bytes == 0) return absl::OkStatus();  // it need not have a place
  if (device_ != nullptr) return device_->Zero(DataOf(slot), layout.size_bytes);
  if (!layout.standalone) {
    std::memset(DataOf(slot), 0, layout.size_bytes);
    return absl::OkStatus();
  }
  std::unique_ptr<std::byte[]>& spare = spare_[slot.value()];
  if (spare == nullptr) {
    spare = std::make_unique<std::byte[]>(layout.size_bytes);
  } else {
    std::memset(spare.get(), 0, layout.size_bytes);
  }
  Place(slot, spare.get());
  return absl::OkStatus();
}

SegmentList BucketStorage::SegmentsOf(BucketId bucket) const {
  const BucketLayout& layout = plan_.bucket(bucket);
  SegmentList segments;
  if (layout.flat_count > 0) {
    segments.push_back({{region_->id(), layout.flat_offset_bytes}, layout.flat_count});
  }
  for (SlotId slot : layout.standalone) {
    const TensorSpec& tensor = plan_.tensor(slot);
    segments.push_back({Locate(DataOf(slot), tensor.size_bytes()), tensor.count});
  }
  return segments;
}

std::byte* BucketStorage::FlatOf(BucketId bucket) const {
  const BucketLayout& layout = plan_.bucket(bucket);
  return layout.flat_count == 0 ? nullptr : region_->data() + layout.flat_offset_bytes;
}

}  // namespace pelton
