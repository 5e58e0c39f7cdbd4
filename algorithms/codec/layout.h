// Where the parts of an encoded chunk lie.
#ifndef PELTON_ALGORITHMS_CODEC_LAYOUT_H_
#define PELTON_ALGORITHMS_CODEC_LAYOUT_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/memory/dtype.h"

namespace pelton::codec {

// Every part begins at a multiple of it. Units: bytes.
inline constexpr uint64_t kPartAlignment = 32;

inline uint64_t RoundedUpToPart(uint64_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

// Zeros from `used` bytes to the end of the part: no byte of a message is left undefined.
inline void ZeroRestOfPart(std::byte* part, uint64_t used) {
  std::memset(part + used, 0, RoundedUpToPart(used) - used);
}

// What top_k keeps and where it puts it.
// Format: the kept elements' indices, ascending, 4 bytes each, or 8 in tensors of more than 2^32
// elements; zeros up to a multiple of 32; their values, in the tensor's dtype (float32 for
// float64); zeros up to a multiple of 32. Threads: a value. Owns: nothing.
struct TopKLayout {
  TopKLayout(uint64_t count, double ratio, DType dtype)
      : kept(std::min(count, static_cast<uint64_t>(std::ceil(ratio * static_cast<double>(count))))),
        index_bytes(count <= (uint64_t{1} << 32) ? 4 : 8),
        value_dtype(dtype == DType::kFloat64 ? DType::kFloat32 : dtype),
        values_at(RoundedUpToPart(kept * index_bytes)) {}

  uint64_t ValueBytes() const { return kept * SizeOf(value_dtype); }
  uint64_t Bytes() const { return values_at + RoundedUpToPart(ValueBytes()); }

  uint64_t kept;
  uint64_t index_bytes;
  DType value_dtype;
  uint64_t values_at;
};

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_LAYOUT_H_
