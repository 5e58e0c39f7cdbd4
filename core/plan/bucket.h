// The memory of a plan's buckets.
#ifndef PELTON_CORE_PLAN_BUCKET_H_
#define PELTON_CORE_PLAN_BUCKET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/memory/device_queue.h"
#include "core/memory/region.h"
#include "core/plan/plan.h"

namespace pelton {

// A contiguous part of a bucket's memory, exchanged by one operation.
struct Segment {
  Location location;
  uint64_t count = 0;  // elements of the bucket's dtype
};
using SegmentList = absl::InlinedVector<Segment, 4>;

// One region with the flat part of every bucket, and the address of every standalone tensor in this
// round.
// Threads: the place of a slot is set by its producer before the slot is ready and read by the
// channel after its bucket is: the ready tracker orders the two (OWN-1). Owns: the region, and its
// memory where that is a device's.
class BucketStorage {
 public:
  // Zeros, in the host's memory or in that of `device`, which outlives the storage. Errors: those
  // of Region::Create and of Allocate; InvalidArgument: a bucket that is not where the memory is.
  // `capacity_bytes`: for plans that follow, where they need more than this one.
  static absl::StatusOr<std::unique_ptr<BucketStorage>> Create(const Plan& plan,
                                                               const std::string& name,
                                                               DeviceQueue* device = nullptr,
                                                               uint64_t capacity_bytes = 0);
  // Without memory yet: TakeMemoryOf gives it that of the storage before, which Fits. Making and
  // faulting in another region would take tens of milliseconds for 134 MB.
  static std::unique_ptr<BucketStorage> CreateToFollow(const Plan& plan);
  // Over the host's memory that is there already, such as a daemon's that is mapped here; null
  // where the plan has no flat part. Leaves the bytes alone. Errors: InvalidArgument: there is too
  // little of it.
  static absl::StatusOr<std::unique_ptr<BucketStorage>> CreateOver(const Plan& plan,
                                                                   std::unique_ptr<Region> region);
  ~BucketStorage();
  BucketStorage(const BucketStorage&) = delete;
  BucketStorage& operator=(const BucketStorage&) = delete;

  // Holds the flat parts; null if no bucket has one.
  const Region* region() const { return region_.get(); }
  // Null: the host.
  DeviceQueue* device() const { return device_; }

  // Whether the flat parts of `plan` have room in the memory, which is the host's.
  bool Fits(const Plan& plan) const;
  // Takes over the region of `before`, which nobody uses any more. Slots hold what lay there; what
  // lies between them is zeros.
  void TakeMemoryOf(BucketStorage& before);

  // The slot's first element: in the flat part, or where the last round's producer put it; null
  // for a standalone slot that has no place yet.
  std::byte* DataOf(SlotId slot) const { return addresses_[slot.value()]; }
  // Names the place of a standalone slot for this round.
  void Place(SlotId slot, std::byte* data) { addresses_[slot.value()] = data; }
  // Makes a slot that nobody has produced zeros; a standalone one gets private memory, kept for the
  // next time. Errors: the device's.
  absl::Status PlaceZeros(SlotId slot);

  // The flat part, if there is one, then the standalone tensors in plan order.
  SegmentList SegmentsOf(BucketId bucket) const;
  // The first element of the bucket's flat part; null if there is none.
  std::byte* FlatOf(BucketId bucket) const;

 private:
  BucketStorage(const Plan& plan, DeviceQueue* device) : plan_(plan), device_(device) {}
  absl::Status MakeRegion(const std::string& name, uint64_t size_bytes);
  void PlaceSlots();
  void ZeroGaps();

  const Plan& plan_;
  DeviceQueue* const device_;
  std::unique_ptr<Region> region_;
  std::vector<std::byte*> addresses_;                // by slot
  std::vector<std::unique_ptr<std::byte[]>> spare_;  // by slot
};

}  // namespace pelton

#endif  // PELTON_CORE_PLAN_BUCKET_H_
