// Which elements top_k keeps.
#ifndef PELTON_ALGORITHMS_CODEC_TOP_K_SELECTION_H_
#define PELTON_ALGORITHMS_CODEC_TOP_K_SELECTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/memory/dtype.h"

namespace pelton::codec {

// Elements and their indices, in ascending order of these. Threads: a value. Owns: both.
template <typename Index>
struct KeptElements {
  uint64_t count;
  std::unique_ptr<Index[]> indices;
  std::unique_ptr<float[]> values;
};

// Where elements are selected from. Threads: a value. Owns: nothing.
struct SelectionSource {
  const std::byte* source;
  // Becomes itself + source, which is what is selected from; none: source is. As Reduce sums.
  std::byte* residual;
  uint64_t count;
  DType dtype;
};

// The `kept` elements of largest magnitude, in order of their indices; of equal ones those of lower
// index. NaN counts as larger than infinity. Exact, and the same however it is found: a sample says
// which magnitudes are worth collecting, and one pass collects them, more strictly the more of them
// it has seen. Where the sample says too much, which can be seen, a second pass begins without one.
// Requires: kept <= count; Index is uint32_t or uint64_t and holds all indices.
// Memory: some 24 bytes for each that is kept.
template <typename Index>
KeptElements<Index> SelectLargest(const SelectionSource& from, uint64_t kept);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_TOP_K_SELECTION_H_
