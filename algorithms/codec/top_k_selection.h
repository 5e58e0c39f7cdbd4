// Which elements top_k keeps.
#ifndef PELTON_ALGORITHMS_CODEC_TOP_K_SELECTION_H_
#define PELTON_ALGORITHMS_CODEC_TOP_K_SELECTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/memory/dtype.h"

namespace pelton::codec {

// Threads: a value. Owns: nothing.
struct KeptElement {
  uint64_t index;
  float value;
};

// The `kept` elements of largest magnitude, in order of their indices; of equal ones those of lower
// index. NaN counts as larger than infinity. Exact, and the same however it is found.
// Requires: kept <= count. Memory: some 16 bytes for each that is kept.
std::vector<KeptElement> SelectLargest(const std::byte* source, uint64_t count, DType dtype,
                                       uint64_t kept);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_TOP_K_SELECTION_H_
