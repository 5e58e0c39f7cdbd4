// Compiled once per instruction set (Highway's foreach_target); the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "algorithms/codec/select_kernel.cc"
#include "algorithms/codec/select_kernel.h"

#include <bit>

#include "core/base/instruction_sets.h"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

size_t IndicesAtLeastOnTarget(const float* elements, size_t count, uint32_t least,
                              uint32_t* indices) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> i32;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(i32, 0x7FFFFFFF);
  // Keys and `least` are at most 2^31 - 1, so they compare as signed integers do.
  const auto below = hn::Set(i32, static_cast<int32_t>(least) - 1);
  const auto key = [&](size_t i) HWY_ATTR {
    return hn::And(hn::BitCast(i32, hn::LoadU(d, elements + i)), mask);
  };
  size_t found = 0;
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto largest =
        hn::Max(hn::Max(key(i), key(i + lanes)), hn::Max(key(i + 2 * lanes), key(i + 3 * lanes)));
    if (hn::AllFalse(i32, hn::Gt(largest, below))) continue;  // nearly always
    for (size_t j = i; j < i + 4 * lanes; j += lanes) {
      uint8_t bytes[8] = {};
      hn::StoreMaskBits(i32, hn::Gt(key(j), below), bytes);
      for (uint32_t bits = bytes[0] | bytes[1] << 8; bits != 0; bits &= bits - 1) {
        indices[found++] = static_cast<uint32_t>(j + std::countr_zero(bits));
      }
    }
  }
  for (; i < count; ++i) {
    if (codec::MagnitudeKey(elements[i]) >= least) indices[found++] = static_cast<uint32_t>(i);
  }
  return found;
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pelton {

HWY_EXPORT(IndicesAtLeastOnTarget);

namespace codec {

size_t IndicesAtLeast(const float* elements, size_t count, uint32_t least, uint32_t* indices) {
  return HWY_DYNAMIC_DISPATCH(IndicesAtLeastOnTarget)(elements, count, least, indices);
}

}  // namespace codec
}  // namespace pelton
#endif  // HWY_ONCE
