#include "core/round/slot_state.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/check.h"
#include "core/memory/region.h"

namespace pelton {
namespace {

// The share of `slot`, whose elements are those from `slot_begin` to `slot_end` in the flat part.
void Append(const StateBuffer& buffer, const std::string& key, SlotId slot, uint64_t slot_begin,
            uint64_t slot_end, std::vector<SlotStateView>& states) {
  const uint64_t begin = std::max(buffer.begin_count, slot_begin);
  const uint64_t end = std::min(buffer.begin_count + buffer.count, slot_end);
  if (begin >= end) return;
  const size_t element_bytes = SizeOf(buffer.dtype);
  std::byte* const data = buffer.data + (begin - buffer.begin_count) * element_bytes;
  states.push_back({.key = key,
                    .slot = slot,
                    .dtype = buffer.dtype,
                    .scope = buffer.scope,
                    .begin_count = begin - slot_begin,
                    .bytes = absl::MakeSpan(data, (end - begin) * element_bytes)});
}

template <typename From>
void CopyOverlap(const From& from, const SlotStateView& to) {
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

template <typename From>
void CopyWhatBothHave(absl::Span<const From> from, absl::Span<const SlotStateView> to) {
  absl::flat_hash_map<std::pair<std::string, SlotId>, const From*> known;
  for (const From& state : from) known[{state.key, state.slot}] = &state;
  for (const SlotStateView& state : to) {
    const auto old = known.find({state.key, state.slot});
    if (old != known.end() && old->second->dtype == state.dtype) CopyOverlap(*old->second, state);
  }
}

}  // namespace

std::vector<SlotStateView> SlotStatesOf(PlanInstance& instance) {
  std::vector<SlotStateView> states;
  for (const BucketLayout& bucket : instance.plan.buckets()) {
    Pipeline& pipeline = instance.pipelines[static_cast<size_t>(bucket.id.value())];
    absl::flat_hash_map<absl::string_view, int> seen;
    for (size_t i = 0; i < pipeline.stage_count(); ++i) {
      if (pipeline.state(i) == nullptr) continue;
      const absl::string_view stage = pipeline.stage(i).name();
      const int number = ++seen[stage];
      const std::string name = number == 1 ? std::string(stage) : absl::StrCat(stage, " ", number);
      for (const StateBuffer& buffer : pipeline.state(i)->buffers()) {
        const std::string key = absl::StrCat(name, "/", buffer.name);
        instance.plan.ForEachFlatSlot(bucket, [&](SlotId slot, uint64_t begin, uint64_t end) {
          Append(buffer, key, slot, begin, end, states);
        });
      }
    }
  }
  return states;
}

std::vector<SlotState> CopiesOf(absl::Span<const SlotStateView> states) {
  std::vector<SlotState> copies;
  for (const SlotStateView& state : states) {
    copies.push_back({.key = state.key,
                      .slot = state.slot,
                      .dtype = state.dtype,
                      .scope = state.scope,
                      .begin_count = state.begin_count,
                      .bytes = {state.bytes.begin(), state.bytes.end()}});
  }
  return copies;
}

void CopySlotStates(absl::Span<const SlotState> from, absl::Span<const SlotStateView> to) {
  CopyWhatBothHave(from, to);
}

void CopySlotStates(absl::Span<const SlotStateView> from, absl::Span<const SlotStateView> to) {
  CopyWhatBothHave(from, to);
}

SharedState::SharedState(const Plan& plan, absl::string_view names,
                         absl::Span<const SlotStateView> mine) {
  begins_.push_back(0);
  for (const TensorSpec& tensor : plan.tensors()) begins_.push_back(begins_.back() + tensor.count);
  for (absl::string_view line : absl::StrSplit(names, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> name =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int dtype = 0;
    PELTON_CHECK(absl::SimpleAtoi(name.first, &dtype)) << "no name: " << line;
    Array& array = arrays_.emplace_back();
    array.key = std::string(name.second);
    array.dtype = static_cast<DType>(dtype);
    array.elements.resize(begins_.back() * SizeOf(array.dtype));
  }
  const std::vector<std::vector<Part>> parts = PartsOf(mine);
  for (size_t i = 0; i < arrays_.size(); ++i) {
    for (const Part& part : parts[i]) {
      std::memcpy(arrays_[i].elements.data() + part.begin_bytes, part.in_state, part.size_bytes);
    }
  }
}

std::string SharedState::NamesOf(absl::Span<const SlotStateView> states) {
  std::set<std::string> names;
  for (const SlotStateView& state : states) {
    if (state.scope != StateScope::kShared) continue;
    names.insert(absl::StrCat(static_cast<int>(state.dtype), " ", state.key, "\n"));
  }
  std::string text;
  for (const std::string& name : names) text += name;
  return text;
}

std::vector<Operation> SharedState::Sums() {
  std::vector<Operation> sums;
  for (Array& array : arrays_) {
    const Location elements = Locate(array.elements.data(), array.elements.size());
    sums.push_back(AllReduceOf(ReduceOp::kSum, array.dtype, begins_.back(), elements));
  }
  return sums;
}

void SharedState::CopyTo(absl::Span<const SlotStateView> states) const {
  const std::vector<std::vector<Part>> parts = PartsOf(states);
  for (size_t i = 0; i < arrays_.size(); ++i) {
    for (const Part& part : parts[i]) {
      std::memcpy(part.in_state, arrays_[i].elements.data() + part.begin_bytes, part.size_bytes);
    }
  }
}

std::vector<std::vector<SharedState::Part>> SharedState::PartsOf(
    absl::Span<const SlotStateView> states) const {
  std::vector<std::vector<Part>> parts(arrays_.size());
  for (const SlotStateView& state : states) {
    const auto array = std::find_if(arrays_.begin(), arrays_.end(), [&](const Array& each) {
      return each.key == state.key && each.dtype == state.dtype;
    });
    if (state.scope != StateScope::kShared || array == arrays_.end()) continue;
    const auto slot = static_cast<size_t>(state.slot.value());
    const size_t element_bytes = SizeOf(state.dtype);
    const uint64_t begin = std::min(begins_[slot] + state.begin_count, begins_[slot + 1]);
    const uint64_t end = std::min(begin + state.bytes.size() / element_bytes, begins_[slot + 1]);
    parts[static_cast<size_t>(array - arrays_.begin())].push_back(
        {state.bytes.data(), begin * element_bytes, (end - begin) * element_bytes});
  }
  return parts;
}

}  // namespace pelton
