#include "algorithms/stage/gaps.h"

#include <cstring>

namespace pelton {

void ForEachGap(const Plan& plan, const BucketLayout& layout,
                absl::FunctionRef<void(uint64_t, uint64_t)> f) {
  uint64_t end = 0;  // of the slots so far
  const auto gap_until = [&](uint64_t begin) {
    if (end < begin) f(end, begin - end);
  };
  for (SlotId id : layout.slots) {
    const SlotLayout& slot = plan.slot(id);
    if (slot.standalone) continue;
    const uint64_t begin = slot.offset_bytes - layout.flat_offset_bytes;
    gap_until(begin);
    end = begin + slot.size_bytes;
  }
  gap_until(layout.content_count * SizeOf(layout.dtype));
}

void ZeroGaps(const Plan& plan, const BucketLayout& layout, std::byte* flat) {
  ForEachGap(plan, layout, [flat](uint64_t begin_bytes, uint64_t size_bytes) {
    std::memset(flat + begin_bytes, 0, size_bytes);
  });
}

}  // namespace pelton
