#include "core/plan/plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

absl::Status CheckOptions(const PlanOptions& options) {
  const int32_t world_size = options.world_size.value();
  if (world_size < 1 || world_size > limits::kMaxWorldSize) {
    return absl::InvalidArgumentError(absl::StrCat("plan: world_size is ", world_size,
                                                   ", not within 1 and ", limits::kMaxWorldSize));
  }
  if (options.bucket_size_bytes == 0 || options.bucket_size_bytes > limits::kMaxBucketBytes) {
    return absl::InvalidArgumentError(absl::StrCat("plan: bucket_size_bytes is ",
                                                   options.bucket_size_bytes, ", not within 1 and ",
                                                   limits::kMaxBucketBytes));
  }
  if (options.standalone_bytes == 0) {
    return absl::InvalidArgumentError(
        "plan: standalone_bytes is 0; it is the size from which a tensor is communicated by "
        "itself");
  }
  const uint64_t alignment = options.constraints.alignment_count;
  if (alignment == 0 || alignment > limits::kMaxBucketBytes) {
    return absl::InvalidArgumentError(absl::StrCat("plan: alignment_count is ", alignment,
                                                   ", not within 1 and ", limits::kMaxBucketBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const std::vector<TensorSpec>& tensors) {
  if (tensors.empty()) return absl::InvalidArgumentError("plan: there is no tensor to plan");
  if (tensors.size() > limits::kMaxTensorsPerPlan) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "plan: ", tensors.size(), " tensors are more than ", limits::kMaxTensorsPerPlan));
  }
  absl::flat_hash_set<absl::string_view> names;
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& tensor = tensors[i];
    if (tensor.name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("plan: tensor ", i, " has no name"));
    }
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan: two tensors are named '", tensor.name, "'"));
    }
    if (tensor.count > limits::kMaxPlanBytes) {
      return absl::InvalidArgumentError(absl::StrCat("plan: tensor '", tensor.name, "' has ",
                                                     tensor.count, " elements, more than ",
                                                     limits::kMaxPlanBytes));
    }
    total_bytes += tensor.size_bytes();
    if (total_bytes > limits::kMaxPlanBytes) {
      return absl::ResourceExhaustedError(absl::StrCat("plan: with tensor '", tensor.name,
                                                       "' the plan exceeds ", limits::kMaxPlanBytes,
                                                       " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOrder(absl::Span<const SlotId> order, size_t slot_count) {
  if (order.size() != slot_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: an order of ", order.size(), " slots for ", slot_count, " tensors"));
  }
  std::vector<bool> seen(slot_count, false);
  for (SlotId slot : order) {
    const auto index = static_cast<size_t>(slot.value());
    if (slot.value() < 0 || index >= slot_count) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan: the order names slot ", slot.value(), ", there are ", slot_count));
    }
    if (seen[index]) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan: the order names slot ", slot.value(), " twice"));
    }
    seen[index] = true;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> Plan::Build(std::vector<TensorSpec> tensors, PlanOptions options) {
  RETURN_IF_ERROR(CheckOptions(options));
  RETURN_IF_ERROR(CheckTensors(tensors));
  std::vector<SlotId> order;
  order.reserve(tensors.size());
  for (size_t i = tensors.size(); i-- > 0;) order.emplace_back(static_cast<int32_t>(i));
  if (!options.buckets.empty()) {
    if (options.buckets.size() != tensors.size()) {
      return absl::InvalidArgumentError(absl::StrCat("plan: buckets of ", options.buckets.size(),
                                                     " tensors, there are ", tensors.size()));
    }
    std::reverse(order.begin(), order.end());
    std::stable_sort(order.begin(), order.end(), [&options](SlotId a, SlotId b) {
      return options.buckets[a.value()] < options.buckets[b.value()];
    });
  }
  return BuildInOrder(std::move(tensors), std::move(options), order, PlanVersion(1));
}

absl::StatusOr<Plan> Plan::Reordered(absl::Span<const SlotId> order) const {
  RETURN_IF_ERROR(CheckOrder(order, tensors_.size()));
  return BuildInOrder(tensors_, options_, order, PlanVersion(version_.value() + 1));
}

absl::StatusOr<Plan> Plan::Resized(absl::Span<const SlotId> order,
                                   uint64_t bucket_size_bytes) const {
  RETURN_IF_ERROR(CheckOrder(order, tensors_.size()));
  PlanOptions options = options_;
  options.bucket_size_bytes = bucket_size_bytes;
  RETURN_IF_ERROR(CheckOptions(options));
  return BuildInOrder(tensors_, std::move(options), order, PlanVersion(version_.value() + 1));
}

absl::StatusOr<Plan> Plan::BuildInOrder(std::vector<TensorSpec> tensors, PlanOptions options,
                                        absl::Span<const SlotId> order, PlanVersion version) {
  Plan plan;
  plan.version_ = version;
  plan.options_ = std::move(options);
  plan.tensors_ = std::move(tensors);
  RETURN_IF_ERROR(plan.CheckChosenBuckets());
  plan.AssignBuckets(order);
  RETURN_IF_ERROR(plan.LayOut());
  return plan;
}

absl::Status Plan::CheckChosenBuckets() const {
  std::map<int32_t, const TensorSpec*> first;
  for (size_t i = 0; i < options_.buckets.size(); ++i) {
    const TensorSpec& tensor = tensors_[i];
    const TensorSpec& other = *first.emplace(options_.buckets[i], &tensor).first->second;
    if (tensor.dtype != other.dtype || tensor.device != other.device) {
      return absl::InvalidArgumentError(absl::StrCat(
          "plan: bucket ", options_.buckets[i], " has tensor '", other.name, "' of ",
          NameOf(other.dtype), " on ", NameOf(other.device.kind), " and tensor '", tensor.name,
          "' of ", NameOf(tensor.dtype), " on ", NameOf(tensor.device.kind)));
    }
  }
  return absl::OkStatus();
}

void Plan::AssignBuckets(absl::Span<const SlotId> order) {
  struct Open {
    BucketLayout bucket;
    uint64_t size_bytes = 0;
    size_t last = 0;  // place in `order` of the bucket's last tensor
  };
  const bool are_chosen = !options_.buckets.empty();
  std::map<std::tuple<Device, DType, int32_t>, Open> open;
  std::vector<Open> closed;
  for (size_t place = 0; place < order.size(); ++place) {
    const TensorSpec& tensor = tensors_[order[place].value()];
    const int32_t chosen = are_chosen ? options_.buckets[order[place].value()] : 0;
    Open& group = open[{tensor.device, tensor.dtype, chosen}];
    const uint64_t size_bytes = tensor.size_bytes();
    if (!are_chosen && !group.bucket.slots.empty() &&
        group.size_bytes + size_bytes > options_.bucket_size_bytes) {
      closed.push_back(std::exchange(group, Open{}));
    }
    group.bucket.dtype = tensor.dtype;
    group.bucket.device = tensor.device;
    group.bucket.slots.push_back(order[place]);
    group.size_bytes += size_bytes;
    group.last = place;
  }
  for (auto& [kind, group] : open) closed.push_back(std::move(group));
  // A bucket can be ready when its last tensor is: releasing in that order never waits in vain.
  std::sort(closed.begin(), closed.end(),
            [](const Open& a, const Open& b) { return a.last < b.last; });
  for (Open& group : closed) buckets_.push_back(std::move(group.bucket));
}

absl::Status Plan::LayOut() {
  slots_.resize(tensors_.size());
  for (size_t i = 0; i < buckets_.size(); ++i) {
    buckets_[i].id = BucketId(static_cast<int32_t>(i));
    RETURN_IF_ERROR(LayOutBucket(buckets_[i]));
  }
  return absl::OkStatus();
}

absl::Status Plan::LayOutBucket(BucketLayout& bucket) {
  const uint64_t element_bytes = SizeOf(bucket.dtype);
  const PlanConstraints& constraints = options_.constraints;
  bucket.flat_offset_bytes = flat_bytes_;
  uint64_t cursor_bytes = 0;  // in the flat part
  for (size_t i = 0; i < bucket.slots.size(); ++i) {
    const SlotId id = bucket.slots[i];
    SlotLayout& slot = slots_[id.value()];
    slot.bucket = bucket.id;
    slot.index = static_cast<int32_t>(i);
    slot.size_bytes = tensors_[id.value()].size_bytes();
    slot.standalone = constraints.allows_standalone && slot.size_bytes >= options_.standalone_bytes;
    if (slot.standalone) {
      bucket.standalone.push_back(id);
      continue;
    }
    if (!constraints.packs_slots) cursor_bytes = RoundUp(cursor_bytes, limits::kSlotAlignmentBytes);
    slot.offset_bytes = flat_bytes_ + cursor_bytes;
    cursor_bytes += slot.size_bytes;
  }
  bucket.content_count = RoundUp(cursor_bytes, limits::kSlotAlignmentBytes) / element_bytes;
  const uint64_t multiple =
      static_cast<uint64_t>(options_.world_size.value()) * constraints.alignment_count;
  bucket.flat_count = RoundUp(bucket.content_count, multiple);
  flat_bytes_ =
      RoundUp(flat_bytes_ + bucket.flat_count * element_bytes, limits::kRegionAlignmentBytes);
  if (flat_bytes_ > limits::kMaxPlanBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("plan: with its padding the plan exceeds ", limits::kMaxPlanBytes, " bytes"));
  }
  return absl::OkStatus();
}

std::string Plan::Serialize() const {
  std::string text =
      absl::StrCat("plan of ", tensors_.size(), " tensors for ", options_.world_size.value(),
                   " ranks, bucket_size_bytes ", options_.bucket_size_bytes, ", algorithm ",
                   absl::CEscape(options_.algorithm), "\n");
  for (const BucketLayout& bucket : buckets_) {
    for (SlotId id : bucket.slots) {
      const SlotLayout& slot = slots_[id.value()];
      const TensorSpec& spec = tensors_[id.value()];
      absl::StrAppend(
          &text, "tensor '", absl::CEscape(spec.name), "' ", NameOf(spec.dtype), " x ", spec.count,
          spec.columns > 0 ? absl::StrCat(" in rows of ", spec.columns) : "",
          spec.layout.empty() ? "" : absl::StrCat(" with ", absl::CEscape(spec.layout)), " on ",
          NameOf(spec.device.kind), ", slot ", id.value(), " of bucket ", bucket.id.value(), ", ");
      if (slot.standalone) {
        absl::StrAppend(&text, "standalone\n");
      } else {
        absl::StrAppend(&text, "at byte ", slot.offset_bytes, "\n");
      }
    }
    absl::StrAppend(&text, "bucket ", bucket.id.value(), " ends: flat part of ", bucket.flat_count,
                    " elements\n");
  }
  return text;
}

uint64_t Plan::Hash() const {
  // FNV-1a: the standard library's hashes and Abseil's may differ from process to process.
  uint64_t hash = 14695981039346656037u;
  for (unsigned char byte : Serialize()) hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

void Plan::ForEachFlatSlot(const BucketLayout& bucket,
                           absl::FunctionRef<void(SlotId, uint64_t, uint64_t)> f) const {
  std::optional<SlotId> before;
  uint64_t begin = 0;  // of that one
  for (SlotId id : bucket.slots) {
    if (slot(id).standalone) continue;
    const uint64_t end = (slot(id).offset_bytes - bucket.flat_offset_bytes) / SizeOf(bucket.dtype);
    if (before.has_value()) f(*before, begin, end);
    before = id;
    begin = end;
  }
  if (before.has_value()) f(*before, begin, std::numeric_limits<uint64_t>::max());
}

std::string Plan::Describe(BucketId bucket) const {
  constexpr size_t kNamed = 3;
  const std::vector<SlotId>& slots = buckets_[bucket.value()].slots;
  std::string text = absl::StrCat("bucket ", bucket.value(), " (");
  for (size_t i = 0; i < slots.size() && i < kNamed; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", tensors_[slots[i].value()].name);
  }
  if (slots.size() > kNamed) absl::StrAppend(&text, " and ", slots.size() - kNamed, " more");
  return absl::StrCat(text, ")");
}

std::string FirstDifference(absl::string_view mine, absl::string_view theirs) {
  if (mine == theirs) return "";
  const std::vector<absl::string_view> my_lines = absl::StrSplit(mine, '\n');
  const std::vector<absl::string_view> their_lines = absl::StrSplit(theirs, '\n');
  size_t line = 0;
  while (line < my_lines.size() && line < their_lines.size() &&
         my_lines[line] == their_lines[line]) {
    ++line;
  }
  const auto text_of = [line](const std::vector<absl::string_view>& lines) {
    return line < lines.size() && !lines[line].empty() ? lines[line] : "nothing";
  };
  return absl::StrCat("here: ", text_of(my_lines), "; there: ", text_of(their_lines));
}

}  // namespace pelton
