// Compiled once per instruction set (Highway's foreach_target); the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "algorithms/codec/keep_rest.cc"
#include "algorithms/codec/keep_rest.h"

#include <cstring>

#include "core/base/instruction_sets.h"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "comm/reduction/formats-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// residual = residual - decoded, 0 where that is not finite.
template <class Format>
HWY_INLINE void KeepRest(const std::byte* decoded, uint64_t count, std::byte* residual) {
  using Element = typename Format::Element;
  const typename Format::D d;
  const size_t lanes = hn::Lanes(d);
  const auto* from = reinterpret_cast<const Element*>(decoded);
  auto* to = reinterpret_cast<Element*>(residual);
  const auto rest = [&](const Element* sum, const Element* sent) HWY_ATTR {
    const auto difference = hn::Sub(Format::Load(d, sum), Format::Load(d, sent));
    const auto nothing = hn::Sub(difference, difference);  // NaN where it is not finite
    return hn::IfThenElseZero(hn::Eq(nothing, nothing), difference);
  };
  uint64_t i = 0;
  for (; i + lanes <= count; i += lanes) Format::Store(d, rest(to + i, from + i), to + i);
  if (i == count) return;
  Element sum[hn::MaxLanes(d)] = {};
  Element sent[hn::MaxLanes(d)] = {};
  const size_t bytes = static_cast<size_t>(count - i) * sizeof(Element);
  std::memcpy(sum, to + i, bytes);
  std::memcpy(sent, from + i, bytes);
  Format::Store(d, rest(sum, sent), sum);
  std::memcpy(to + i, sum, bytes);
}

void KeepRestOnTarget(const std::byte* decoded, uint64_t count, DType dtype, std::byte* residual) {
  if (dtype == DType::kFloat32) return KeepRest<Plain<float>>(decoded, count, residual);
  if (dtype == DType::kFloat64) return KeepRest<Plain<double>>(decoded, count, residual);
  if (dtype == DType::kFloat16) return KeepRest<Float16>(decoded, count, residual);
  KeepRest<BFloat16>(decoded, count, residual);
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pelton {

HWY_EXPORT(KeepRestOnTarget);

namespace codec {

void KeepRest(const std::byte* decoded, uint64_t count, DType dtype, std::byte* residual) {
  HWY_DYNAMIC_DISPATCH(KeepRestOnTarget)(decoded, count, dtype, residual);
}

}  // namespace codec
}  // namespace pelton
#endif  // HWY_ONCE
