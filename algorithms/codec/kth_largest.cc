#include "algorithms/codec/kth_largest.h"

#include <algorithm>
#include <array>
#include <bit>

namespace pelton::codec {

namespace {

// Threads: a value. Owns: nothing.
struct Range {
  uint32_t least;
  uint32_t most;
};

// Compares as signed numbers, which every instruction set has.
Range RangeOf(absl::Span<const uint32_t> keys) {
  auto least = static_cast<int32_t>(keys[0]);
  int32_t most = least;
  for (const uint32_t key : keys) {
    least = std::min(least, static_cast<int32_t>(key));
    most = std::max(most, static_cast<int32_t>(key));
  }
  return {static_cast<uint32_t>(least), static_cast<uint32_t>(most)};
}

}  // namespace

KthLargestKey KthLargest(absl::Span<uint32_t> keys, uint64_t rank) {
  constexpr int kBits = 8;  // of ranges at a time: 2 KiB of counts, and at most four times
  while (true) {
    const auto [least, most] = RangeOf(keys);
    if (least == most) return {least, rank};
    const int shift = std::max(0, static_cast<int>(std::bit_width(most - least)) - kBits);
    std::array<uint64_t, 1 << kBits> counts = {};
    for (const uint32_t key : keys) ++counts[(key - least) >> shift];
    uint32_t range = (most - least) >> shift;
    while (counts[range] < rank) rank -= counts[range--];
    if (shift == 0) return {least + range, rank};
    size_t kept = 0;  // always written, counted where it belongs: a branch would be guessed wrong
    for (const uint32_t key : keys) {
      keys[kept] = key;
      kept += (key - least) >> shift == range ? 1 : 0;
    }
    keys = keys.first(kept);
  }
}

}  // namespace pelton::codec
