// Puts the elements that top_k kept back to where they were.
#ifndef PELTON_ALGORITHMS_CODEC_TOP_K_SCATTER_H_
#define PELTON_ALGORITHMS_CODEC_TOP_K_SCATTER_H_

#include <cstddef>
#include <cstdint>

#include "algorithms/codec/top_k_layout.h"
#include "core/memory/dtype.h"

namespace pelton::codec {

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

#endif  // PELTON_ALGORITHMS_CODEC_TOP_K_SCATTER_H_
