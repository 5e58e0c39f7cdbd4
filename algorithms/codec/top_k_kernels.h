// Which elements top_k keeps, and how they are put back to where they were.
#ifndef PELTON_ALGORITHMS_CODEC_TOP_K_KERNELS_H_
#define PELTON_ALGORITHMS_CODEC_TOP_K_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "algorithms/codec/layout.h"
#include "core/memory/dtype.h"

namespace pelton::codec {

// Threads: a value. Owns: nothing.
struct KthLargestKey {
  uint32_t key;
  uint64_t equal;  // how many of those at `key` are among the `rank` largest
};

// The key of the `rank`-th largest, counted from 1, in time linear in the keys' number whatever
// they are: by counts of evenly divided ranges, each of the next one's keys. Overwrites the keys.
// Requires: 1 <= rank <= keys.size(); keys below 2^31.
KthLargestKey KthLargest(absl::Span<uint32_t> keys, uint64_t rank);

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

// What a message of this layout says: zeros but for its elements. An index of `count` or more says
// nothing; of elements with the same index, in any order, the last one counts.
// Shape: target [count].
void ScatterOverZeros(const std::byte* encoded, const TopKLayout& layout, uint64_t count,
                      DType dtype, std::byte* target);

// KeepRest of the elements that a message has, which this codec encoded; the others are as they
// are. Shape: as KeepRest.
void KeepRestOfKept(const std::byte* encoded, const TopKLayout& layout, const std::byte* decoded,
                    DType dtype, std::byte* residual);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_TOP_K_KERNELS_H_
