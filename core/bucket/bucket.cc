#include "core/bucket/bucket.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<BucketStorage>> BucketStorage::Create(const Plan& plan,
                                                                     const std::string& name,
                                                                     DeviceQueue* device) {
  const DeviceKind kind = device == nullptr ? DeviceKind::kHost : device->stream().device();
  for (const BucketLayout& bucket : plan.buckets()) {
    if (bucket.device.kind == kind && (device == nullptr || bucket.standalone.empty())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(plan.Describe(bucket.id), " is on ", NameOf(bucket.device.kind),
                     bucket.standalone.empty() ? "" : ", with tensors outside of it",
                     ", the model's buckets are on ", NameOf(kind)));
  }
  std::unique_ptr<BucketStorage> storage(new BucketStorage(plan, device));
  if (plan.flat_bytes() > 0) RETURN_IF_ERROR(storage->MakeRegion(name));
  const size_t slot_count = plan.slots().size();
  storage->addresses_.resize(slot_count, nullptr);
  storage->spare_.resize(slot_count);
  for (size_t i = 0; i < slot_count; ++i) {
    const SlotLayout& slot = plan.slots()[i];
    if (slot.standalone || storage->region_ == nullptr) continue;
    storage->addresses_[i] = storage->region_->data() + slot.offset_bytes;
  }
  return storage;
}

absl::Status BucketStorage::MakeRegion(const std::string& name) {
  if (device_ == nullptr) {
    ASSIGN_OR_RETURN(region_, Region::Create(plan_.flat_bytes(), name));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::byte* const memory, device_->Allocate(plan_.flat_bytes()));
  region_ = Region::Adopt(memory, plan_.flat_bytes(), name);
  return absl::OkStatus();
}

BucketStorage::~BucketStorage() {
  if (device_ == nullptr || region_ == nullptr) return;
  std::byte* const memory = region_->data();
  region_.reset();
  device_->Release(memory);
}

absl::Status BucketStorage::PlaceZeros(SlotId slot) {
  const SlotLayout& layout = plan_.slot(slot);
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

std::byte* BucketStorage::TailOf(BucketId bucket) const {
  const BucketLayout& layout = plan_.bucket(bucket);
  if (!layout.has_used_tail()) return nullptr;
  return FlatOf(bucket) + layout.tail_offset_count * SizeOf(layout.dtype);
}

}  // namespace pelton
