#include "algorithms/stage/used_flags.h"

#include <cstring>

#include "algorithms/codec/convert.h"
#include "algorithms/codec/layout.h"

namespace pelton {

uint64_t UsedFlagBytes(const BucketLayout& layout) {
  return codec::RoundedUpToPart(layout.tail_count);
}

void FlagsFromTail(const BucketLayout& layout, const std::byte* tail, std::byte* flags) {
  const size_t element_bytes = SizeOf(layout.dtype);
  std::memset(flags, 0, UsedFlagBytes(layout));
  for (uint64_t i = 0; i < layout.tail_count * element_bytes; ++i) {
    // Of a sum of ones and zeros only zero has no bit set.
    if (tail[i] != std::byte{0}) flags[i / element_bytes] = std::byte{1};
  }
}

void OrFlags(const BucketLayout& layout, const std::byte* others, std::byte* flags) {
  for (uint64_t i = 0; i < layout.tail_count; ++i) flags[i] |= others[i];
}

void TailFromFlags(const BucketLayout& layout, const std::byte* flags, std::byte* tail) {
  const size_t element_bytes = SizeOf(layout.dtype);
  const float one = 1;
  std::byte used[sizeof(double)];
  codec::FloatsTo(&one, 1, layout.dtype, used);
  std::memset(tail, 0, layout.tail_count * element_bytes);
  for (uint64_t i = 0; i < layout.tail_count; ++i) {
    if (flags[i] != std::byte{0}) std::memcpy(tail + i * element_bytes, used, element_bytes);
  }
}

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
  gap_until(layout.tail_offset_count * SizeOf(layout.dtype));
}

void ZeroGaps(const Plan& plan, const BucketLayout& layout, std::byte* flat) {
  ForEachGap(plan, layout, [flat](uint64_t begin_bytes, uint64_t size_bytes) {
    std::memset(flat + begin_bytes, 0, size_bytes);
  });
}

}  // namespace pelton
