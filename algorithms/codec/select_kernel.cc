// Compiled once per instruction set (Highway's foreach_target); the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "algorithms/codec/select_kernel.cc"
#include "algorithms/codec/select_kernel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "comm/reduction/half.h"
#include "core/base/instruction_sets.h"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "comm/reduction/formats-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kWord = 64;  // elements to a bit each

// Holds a bit for each of so many lanes, and is as large as what Highway writes of them.
template <size_t kLanes>
using Bits =
    std::conditional_t<kLanes <= 8, uint8_t, std::conditional_t<kLanes == 16, uint16_t, uint32_t>>;

// A bit for each of kWord elements: whether its magnitude, as an integer of its own width, is above
// `below`.
template <typename T>
HWY_INLINE uint64_t BitsAbove(const T* elements, T below) {
  const hn::ScalableTag<T> d;
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const auto magnitude = hn::Set(d, std::numeric_limits<T>::max());
  const auto limit = hn::Set(d, below);
  uint64_t word = 0;
  for (size_t i = 0; i < kWord; i += kLanes) {
    const auto key = hn::And(LoadAnywhere(d, elements + i), magnitude);
    uint8_t bytes[8];
    hn::StoreMaskBits(d, hn::Gt(key, limit), bytes);
    Bits<kLanes> bits;
    std::memcpy(&bits, bytes, sizeof bits);
    word |= static_cast<uint64_t>(bits) << i;
  }
  return word;
}

// Appends the positions of the bits, from `begin` on. Nearly always there are few: so many are
// written whether they exist or not, as a branch on how many there are would be guessed wrong; the
// highest bit, set, keeps the compiler from branching on zero. (Compiled without SLP vectorization,
// which would put these few integers together in a vector.)
HWY_INLINE uint32_t* WritePositions(uint64_t bits, size_t begin, uint32_t* to) {
  uint32_t* const end = to + std::popcount(bits);
  for (size_t i = 0; i < codec::kIndicesSlack; ++i) {
    *to++ = static_cast<uint32_t>(begin) + std::countr_zero(bits | uint64_t{1} << (kWord - 1));
    bits &= bits - 1;
  }
  for (; bits != 0; bits &= bits - 1) {
    *to++ = static_cast<uint32_t>(begin) + std::countr_zero(bits);
  }
  return end;
}

template <typename T>
HWY_INLINE size_t IndicesAbove(const std::byte* from, size_t count, T below, uint32_t* indices) {
  const auto* const elements = reinterpret_cast<const T*>(from);
  uint32_t* end = indices;
  size_t i = 0;
  for (; i + kWord <= count; i += kWord) {
    end = WritePositions(BitsAbove(elements + i, below), i, end);
  }
  if (i != count) {
    T rest[kWord] = {};
    std::memcpy(rest, elements + i, (count - i) * sizeof *rest);
    const uint64_t exist = (uint64_t{1} << (count - i)) - 1;
    end = WritePositions(BitsAbove(rest, below) & exist, i, end);
  }
  return static_cast<size_t>(end - indices);
}

size_t IndicesAbove32OnTarget(const std::byte* elements, size_t count, int32_t below,
                              uint32_t* indices) {
  return IndicesAbove<int32_t>(elements, count, below, indices);
}

size_t IndicesAbove16OnTarget(const std::byte* elements, size_t count, int16_t below,
                              uint32_t* indices) {
  return IndicesAbove<int16_t>(elements, count, below, indices);
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pelton {

HWY_EXPORT(IndicesAbove32OnTarget);
HWY_EXPORT(IndicesAbove16OnTarget);

namespace codec {
namespace {

// The largest float16 whose key as a float32 is below `least`, but no NaN.
uint16_t Float16Below(uint32_t least) {
  constexpr uint16_t kInfinity = 0x7C00;
  if (least > MagnitudeKey(std::numeric_limits<float>::infinity())) return kInfinity;
  const uint16_t near = Float16FromFloat(std::bit_cast<float>(least));
  return MagnitudeKey(FloatFromFloat16(near)) < least ? near : near - 1;
}

}  // namespace

size_t IndicesAtLeast(const std::byte* elements, size_t count, DType dtype, uint32_t least,
                      uint32_t* indices) {
  // Keys have no sign bit, so they compare as signed integers do; of 0, what is below is -1.
  if (dtype == DType::kFloat32) {
    const auto below = static_cast<int32_t>(least - 1);
    return HWY_DYNAMIC_DISPATCH(IndicesAbove32OnTarget)(elements, count, below, indices);
  }
  const auto below = dtype == DType::kFloat16
                         ? static_cast<int16_t>(Float16Below(least))
                         : static_cast<int16_t>((static_cast<int64_t>(least) - 1) >> 16);
  return HWY_DYNAMIC_DISPATCH(IndicesAbove16OnTarget)(elements, count, below, indices);
}

}  // namespace codec
}  // namespace pelton
#endif  // HWY_ONCE
