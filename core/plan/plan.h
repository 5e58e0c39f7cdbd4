// Which tensor lies where: the layout of a model's buckets, the same on all ranks.
#ifndef PELTON_CORE_PLAN_PLAN_H_
#define PELTON_CORE_PLAN_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/base/limits.h"
#include "core/memory/device_queue.h"
#include "core/memory/dtype.h"

namespace pelton {

// From 1; grows by one with each new order or bucket size of the same tensors (GEN-1). Another
// number than the Generation of the membership.
using PlanVersion = Id<struct PlanVersionTag, uint32_t>;

// What the planner knows of a tensor.
// Threads: a value. Owns: its name.
struct TensorSpec {
  std::string name;  // unique in its plan, the same on all ranks
  DType dtype = DType::kFloat32;
  uint64_t count = 0;  // elements
  Device device = {};
  // Of a matrix [count / columns, columns], for algorithms that work on those; 0: it is none.
  uint64_t columns = 0;
  // How its elements follow each other, in words: part of the plan's text, because ranks that
  // differ would add up other elements. "": in the order of its dimensions.
  std::string layout = {};

  uint64_t size_bytes() const { return count * SizeOf(dtype); }
};

// What an algorithm asks of every bucket that it is to work on.
struct PlanConstraints {
  // The flat part's count is a multiple of the world size times this. Units: elements.
  uint64_t alignment_count = 1;
  // Whether a bucket may have segments beside its flat part; those are not padded.
  bool allows_standalone = true;
  // Whether the slots of a flat part follow each other without gaps, so that it is one tensor of
  // their elements; else each begins on a cache line.
  bool packs_slots = false;
};

// Threads: a value. Owns: its text.
struct PlanOptions {
  static constexpr uint64_t kNoStandalone = std::numeric_limits<uint64_t>::max();

  WorldSize world_size{1};
  // A bucket closes when the next tensor would make it larger; one larger tensor is a bucket alone.
  uint64_t bucket_size_bytes = limits::kDefaultBucketBytes;
  // A tensor of at least this size is a segment of its own: its memory is named anew in each round.
  uint64_t standalone_bytes = kNoStandalone;
  PlanConstraints constraints;
  std::string algorithm;  // name and options, part of the hash
  // The bucket of each tensor, in registration order, where the user has chosen them: bucket 0 is
  // released first, tensors keep their order, and bucket_size_bytes is of no meaning. Else empty.
  std::vector<int32_t> buckets;
};

// Where a tensor lies.
struct SlotLayout {
  BucketId bucket;
  int32_t index = 0;  // in its bucket's list of slots
  bool standalone = false;
  uint64_t offset_bytes = 0;  // in the plan's flat storage; of no meaning when standalone
  uint64_t size_bytes = 0;
};

// One bucket: a flat part of slots, each on a cache line or packed, then padding; and a segment for
// each standalone tensor.
struct BucketLayout {
  BucketId id;
  DType dtype = DType::kFloat32;
  Device device;
  std::vector<SlotId> slots;       // all of them, in plan order
  std::vector<SlotId> standalone;  // those that are segments of their own
  uint64_t flat_offset_bytes = 0;  // of the flat part in the plan's flat storage, on a page
  uint64_t content_count = 0;      // elements up to the cache line on which the last slot ends
  uint64_t flat_count = 0;         // elements of the flat part, padding included
};

// Tensors have the number (SlotId) of their registration; buckets are numbered in the order in
// which they are released (ORDER-1), that of their last tensors. A tensor of no elements is
// planned, and must be marked ready, like any other.
// Threads: a value, immutable. Owns: its lists.
class Plan {
 public:
  // Plans `tensors`, given in registration order, in reverse: gradients come roughly that way.
  // Errors: InvalidArgument: no tensor, an empty name or one given twice, sizes out of range, a
  // world size below 1, a chosen bucket of several dtypes or devices, each named;
  // ResourceExhausted: above limits::kMaxTensorsPerPlan or kMaxPlanBytes.
  static absl::StatusOr<Plan> Build(std::vector<TensorSpec> tensors, PlanOptions options);

  // The same tensors planned in `order`, as the next version; where the user has chosen the
  // buckets, `order` tells when each is released. Errors: InvalidArgument: `order` is not a
  // permutation of the slots; names the first that is wrong.
  absl::StatusOr<Plan> Reordered(absl::Span<const SlotId> order) const;
  // The same with buckets of another size, which is of no meaning where the user has chosen them.
  // Errors: also InvalidArgument: `bucket_size_bytes` is out of range.
  absl::StatusOr<Plan> Resized(absl::Span<const SlotId> order, uint64_t bucket_size_bytes) const;

  PlanVersion version() const { return version_; }
  const PlanOptions& options() const { return options_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }    // by slot
  const std::vector<SlotLayout>& slots() const { return slots_; }        // by slot
  const std::vector<BucketLayout>& buckets() const { return buckets_; }  // in release order
  // Size of the storage that holds every bucket's flat part. Units: bytes.
  uint64_t flat_bytes() const { return flat_bytes_; }

  bool Has(SlotId slot) const {
    return slot.value() >= 0 && static_cast<size_t>(slot.value()) < tensors_.size();
  }
  const TensorSpec& tensor(SlotId slot) const { return tensors_[slot.value()]; }
  const SlotLayout& slot(SlotId slot) const { return slots_[slot.value()]; }
  const BucketLayout& bucket(BucketId bucket) const { return buckets_[bucket.value()]; }
  // Calls f(slot, begin, end) for the slots of a bucket's flat part, in order, with the elements
  // there that are counted to each: the gap behind it, too, and to the last one all that follows,
  // because stages that work on whole buffers leave state there.
  void ForEachFlatSlot(const BucketLayout& bucket,
                       absl::FunctionRef<void(SlotId, uint64_t, uint64_t)> f) const;

  // The layout as text, a header and a line per slot in plan order: what ranks exchange when their
  // hashes differ. Does not depend on the machine, the version or device numbers.
  std::string Serialize() const;
  // Equal on ranks that hold the same Serialize(); stable across processes and builds.
  uint64_t Hash() const;
  // For error texts: "bucket 3 (fc1.weight, fc1.bias and 4 more)".
  std::string Describe(BucketId bucket) const;

 private:
  Plan() = default;
  static absl::StatusOr<Plan> BuildInOrder(std::vector<TensorSpec> tensors, PlanOptions options,
                                           absl::Span<const SlotId> order, PlanVersion version);
  void AssignBuckets(absl::Span<const SlotId> order);
  absl::Status CheckChosenBuckets() const;
  absl::Status LayOut();
  absl::Status LayOutBucket(BucketLayout& bucket);

  PlanVersion version_{1};
  PlanOptions options_;
  std::vector<TensorSpec> tensors_;
  std::vector<SlotLayout> slots_;
  std::vector<BucketLayout> buckets_;
  uint64_t flat_bytes_ = 0;
};

// Where two serialised plans differ first, for people: names the tensor or the option and both
// versions; "" if they are equal.
std::string FirstDifference(absl::string_view mine, absl::string_view theirs);

}  // namespace pelton

#endif  // PELTON_CORE_PLAN_PLAN_H_
