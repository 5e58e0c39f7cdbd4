#include "core/round/shared_state.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/check.h"
#include "core/memory/region.h"

namespace pelton {

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
    Operation& sum = sums.emplace_back();
    sum.kind = OperationKind::kAllReduce;
    sum.dtype = array.dtype;
    sum.count = begins_.back();
    sum.set_source(Locate(array.elements.data(), array.elements.size()));
    sum.set_target(sum.source());
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
