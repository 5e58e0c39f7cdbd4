// Bagua's MinMaxUInt8: one byte an element, evenly spaced between the smallest and the largest.
// Format: min, then max, in the source's dtype; zeros up to byte 32; a byte an element; zeros up to
// a multiple of 32. Bytes: 32 + count, rounded up to 32.
// Formulas (float32): scale = 255 / (max - min + 1e-7); upper = rint(max * scale); lower = upper -
// 255; byte = min(rint(x * scale), upper) - lower, within 0..255; x' = (byte + lower) / scale.
// Error: half a step of (max - min + 1e-7) / 255, a whole one at a tie. Not finite: NaN or an
// infinity anywhere, or a range beyond float32, makes the whole chunk NaN.
#include <cmath>
#include <cstring>

#include "algorithms/codec/codec.h"
#include "algorithms/codec/convert.h"
#include "algorithms/codec/cuda/gpu_kernels.h"
#include "algorithms/codec/layout.h"
#include "algorithms/codec/min_max_kernels.h"

namespace pelton {
namespace {

using codec::MinMax;
using codec::MinMaxScale;

constexpr uint64_t kHeaderBytes = 32;
// Elements that are still in the cache when those behind them have been encoded.
constexpr uint64_t kCachedCount = 65536;

// Zeros are +0 and NaN the quiet one, whichever of several the processor kept.
float Canonical(float bound) { return bound != bound ? NAN : bound + 0.0f; }

// No element is below it or above it. Sums to nothing with no elements: 0 and 0.
MinMax RangeOf(const std::byte* source, uint64_t count, DType dtype) {
  if (count == 0) return {0, 0};
  const MinMax range = codec::MinMaxOfAll(source, count, dtype);
  return {Canonical(range.min), Canonical(range.max)};
}

// Threads: as Codec. Owns: nothing.
class MinMaxUInt8 final : public Codec {
 public:
  bool Takes(DType dtype) const override { return codec::IsConvertible(dtype); }
  uint64_t EncodedBytes(uint64_t count, DType) const override {
    return kHeaderBytes + codec::RoundedUpToPart(count);
  }
  // A step where a tie falls below the smallest level; of the range, at most twice the largest.
  ErrorBound Bound() const override { return {2.0 / 255 * 1.001, 1e-7 / 255}; }

  const ExchangeKernels* KernelsOf(DeviceKind device) const override {
    return device == DeviceKind::kCuda ? codec::GpuKernels::Get() : nullptr;
  }

  void Encode(const std::byte* source, uint64_t count, DType dtype,
              std::byte* encoded) const override {
    const MinMax range = RangeOf(source, count, dtype);
    std::memset(encoded, 0, kHeaderBytes);
    codec::FloatsTo(&range.min, 1, dtype, encoded);
    codec::FloatsTo(&range.max, 1, dtype, encoded + SizeOf(dtype));
    const MinMaxScale scale = codec::MinMaxScaleOf(range);
    auto* const bytes = reinterpret_cast<uint8_t*>(encoded + kHeaderBytes);
    // Backwards: the end of the source is still in the cache.
    for (uint64_t end = count; end != 0;) {
      const uint64_t begin = (end - 1) / kCachedCount * kCachedCount;
      codec::EncodeMinMaxAll(source + begin * SizeOf(dtype), static_cast<size_t>(end - begin),
                             dtype, scale, bytes + begin);
      end = begin;
    }
    codec::ZeroRestOfPart(encoded + kHeaderBytes, count);
  }

  void Decode(const std::byte* encoded, uint64_t count, DType dtype,
              std::byte* target) const override {
    MinMax range;
    codec::FloatsFrom(encoded, 1, dtype, &range.min);
    codec::FloatsFrom(encoded + SizeOf(dtype), 1, dtype, &range.max);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(encoded + kHeaderBytes);
    codec::DecodeMinMaxAll(bytes, count, codec::MinMaxScaleOf(range), dtype, target);
  }
};

REGISTER_CODEC(min_max_uint8, "Bagua's MinMaxUInt8: a byte an element between min and max",
               MinMaxUInt8);

}  // namespace
}  // namespace pelton
