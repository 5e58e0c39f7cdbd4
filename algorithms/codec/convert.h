// Tensors of the floating point types as blocks of float32, and back.
#ifndef PELTON_ALGORITHMS_CODEC_CONVERT_H_
#define PELTON_ALGORITHMS_CODEC_CONVERT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/memory/dtype.h"

namespace pelton::codec {

// What codecs work on at a time: 16 KiB of float32, half of a small first-level cache.
inline constexpr size_t kBlockCount = 4096;

// float64, float32, float16 and bfloat16.
bool IsConvertible(DType dtype);

// Rounds to nearest, ties to even; what is too large becomes infinite, NaN stays NaN.
// Shape: [count]. Nothing needs to be aligned; nothing may overlap. Requires:
// IsConvertible(dtype).
void FloatsFrom(const std::byte* source, size_t count, DType dtype, float* floats);
void FloatsTo(const float* floats, size_t count, DType dtype, std::byte* target);

// Whether the elements at `tensor` can be read and written as they are, without a conversion.
bool AreFloats(const std::byte* tensor, DType dtype);

enum class Order { kForward, kBackward };

// Calls f(const float* block, uint64_t begin, size_t count) for each kBlockCount elements of
// `source`, the last block being shorter.
template <typename F>
void ForEachSourceBlock(const std::byte* source, uint64_t count, DType dtype, Order order, F f) {
  alignas(64) float buffer[kBlockCount];
  const bool are_floats = AreFloats(source, dtype);
  const uint64_t block_count = (count + kBlockCount - 1) / kBlockCount;
  for (uint64_t b = 0; b < block_count; ++b) {
    const uint64_t begin = (order == Order::kForward ? b : block_count - 1 - b) * kBlockCount;
    const auto length = static_cast<size_t>(std::min<uint64_t>(kBlockCount, count - begin));
    const std::byte* const at = source + begin * SizeOf(dtype);
    if (!are_floats) FloatsFrom(at, length, dtype, buffer);
    f(are_floats ? reinterpret_cast<const float*>(at) : buffer, begin, length);
  }
}

// Calls f(float* block, uint64_t begin, size_t count), which fills the block, for each of `target`.
template <typename F>
void ForEachTargetBlock(std::byte* target, uint64_t count, DType dtype, F f) {
  alignas(64) float buffer[kBlockCount];
  const bool are_floats = AreFloats(target, dtype);
  for (uint64_t begin = 0; begin < count; begin += kBlockCount) {
    const auto length = static_cast<size_t>(std::min<uint64_t>(kBlockCount, count - begin));
    std::byte* const at = target + begin * SizeOf(dtype);
    f(are_floats ? reinterpret_cast<float*>(at) : buffer, begin, length);
    if (!are_floats) FloatsTo(buffer, length, dtype, at);
  }
}

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_CONVERT_H_
