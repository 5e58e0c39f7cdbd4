#include "core/bucket/slot_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace pelton {
namespace {

// The share of `slot`, whose elements are those from `slot_begin` on in the flat part.
void Append(const StateBuffer& buffer, const std::string& key, SlotId slot, uint64_t slot_begin,
            uint64_t slot_count, std::vector<SlotState>& states) {
  const uint64_t begin = std::max(buffer.begin_count, slot_begin);
  const uint64_t end = std::min(buffer.begin_count + buffer.count, slot_begin + slot_count);
  if (begin >= end) return;
  const size_t element_bytes = SizeOf(buffer.dtype);
  std::byte* const data = buffer.data + (begin - buffer.begin_count) * element_bytes;
  states.push_back({.key = key,
                    .slot = slot,
                    .dtype = buffer.dtype,
                    .begin_count = begin - slot_begin,
                    .bytes = absl::MakeSpan(data, (end - begin) * element_bytes)});
}

void CopyOverlap(const SlotState& from, const SlotState& to) {
  const size_t element_bytes = SizeOf(from.dtype);
  const uint64_t from_end = from.begin_count + from.bytes.size() / element_bytes;
  const uint64_t to_end = to.begin_count + to.bytes.size() / element_bytes;
  const uint64_t begin = std::max(from.begin_count, to.begin_count);
  const uint64_t end = std::min(from_end, to_end);
  if (begin >= end) return;
  std::memcpy(to.bytes.data() + (begin - to.begin_count) * element_bytes,
              from.bytes.data() + (begin - from.begin_count) * element_bytes,
              (end - begin) * element_bytes);
}

}  // namespace

std::vector<SlotState> SlotStatesOf(PlanInstance& instance) {
  std::vector<SlotState> states;
  for (const BucketLayout& bucket : instance.plan.buckets()) {
    Pipeline& pipeline = instance.pipelines[static_cast<size_t>(bucket.id.value())];
    for (size_t i = 0; i < pipeline.stage_count(); ++i) {
      if (pipeline.state(i) == nullptr) continue;
      for (const StateBuffer& buffer : pipeline.state(i)->buffers()) {
        const std::string key = absl::StrCat(pipeline.stage(i).name(), " ", i, "/", buffer.name);
        for (SlotId slot : bucket.slots) {
          const SlotLayout& layout = instance.plan.slot(slot);
          if (layout.standalone) continue;
          const uint64_t begin =
              (layout.offset_bytes - bucket.flat_offset_bytes) / SizeOf(bucket.dtype);
          Append(buffer, key, slot, begin, instance.plan.tensor(slot).count, states);
        }
      }
    }
  }
  return states;
}

void CopySlotStates(absl::Span<const SlotState> from, absl::Span<const SlotState> to) {
  absl::flat_hash_map<std::pair<std::string, SlotId>, const SlotState*> known;
  for (const SlotState& state : from) known[{state.key, state.slot}] = &state;
  for (const SlotState& state : to) {
    const auto old = known.find({state.key, state.slot});
    if (old != known.end() && old->second->dtype == state.dtype) CopyOverlap(*old->second, state);
  }
}

}  // namespace pelton
