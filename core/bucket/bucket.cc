#include "core/bucket/bucket.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<BucketStorage>> BucketStorage::Create(const Plan& plan,
                                                                     const std::string& name) {
  for (const BucketLayout& bucket : plan.buckets()) {
    if (bucket.device.kind != DeviceKind::kHost) {
      return absl::UnimplementedError(
          absl::StrCat(plan.Describe(bucket.id), " is not in host memory"));
    }
  }
  std::unique_ptr<BucketStorage> storage(new BucketStorage(plan));
  if (plan.flat_bytes() > 0) {
    ASSIGN_OR_RETURN(storage->region_, Region::Create(plan.flat_bytes(), name));
  }
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

void BucketStorage::PlaceZeros(SlotId slot) {
  const uint64_t size_bytes = plan_.slot(slot).size_bytes;
  std::unique_ptr<std::byte[]>& spare = spare_[slot.value()];
  if (spare == nullptr) {
    spare = std::make_unique<std::byte[]>(size_bytes);
  } else {
    std::memset(spare.get(), 0, size_bytes);
  }
  Place(slot, spare.get());
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
