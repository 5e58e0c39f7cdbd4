// Compiled once per instruction set (Highway's foreach_target); the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "algorithms/codec/convert.cc"
#include "algorithms/codec/convert.h"

#include <cstring>

#include "core/base/check.h"
#include "core/base/instruction_sets.h"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "comm/reduction/formats-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// float64 as vectors of float32.
struct Double {
  using Element = double;
  using D = hn::ScalableTag<float>;
#if HWY_TARGET == HWY_SCALAR
  static HWY_INLINE hn::Vec<D> Load(D d, const Element* from) {
    double wide;
    std::memcpy(&wide, from, sizeof wide);
    return hn::Set(d, static_cast<float>(wide));
  }
  static HWY_INLINE void Store(D d, hn::Vec<D> v, Element* to) {
    const double wide = hn::GetLane(v);
    std::memcpy(to, &wide, sizeof wide);
  }
#else
  using Wide = hn::ScalableTag<double>;
  using Half = hn::Rebind<float, Wide>;
  static HWY_INLINE hn::Vec<D> Load(D d, const Element* from) {
    const Wide wide;
    const auto lower = hn::DemoteTo(Half(), hn::LoadU(wide, from));
    const auto upper = hn::DemoteTo(Half(), hn::LoadU(wide, from + hn::Lanes(wide)));
    return hn::Combine(d, upper, lower);
  }
  static HWY_INLINE void Store(D d, hn::Vec<D> v, Element* to) {
    const Wide wide;
    hn::StoreU(hn::PromoteTo(wide, hn::LowerHalf(Half(), v)), wide, to);
    hn::StoreU(hn::PromoteTo(wide, hn::UpperHalf(Half(), v)), wide, to + hn::Lanes(wide));
  }
#endif
};

template <class From, class To>
HWY_INLINE void Convert(const typename From::Element* from, size_t count,
                        typename To::Element* to) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto v0 = From::Load(d, from + i);
    const auto v1 = From::Load(d, from + i + lanes);
    To::Store(d, v0, to + i);
    To::Store(d, v1, to + i + lanes);
  }
  typename From::Element in[hn::MaxLanes(d)] = {};
  typename To::Element out[hn::MaxLanes(d)];
  for (; i < count; i += lanes) {  // at most twice: through buffers of a whole vector
    const size_t rest = HWY_MIN(lanes, count - i);
    std::memcpy(in, from + i, rest * sizeof *in);
    To::Store(d, From::Load(d, in), out);
    std::memcpy(to + i, out, rest * sizeof *out);
  }
}

void FromOnTarget(const std::byte* source, size_t count, DType dtype, float* floats) {
  using Floats = Plain<float>;
  const auto* const halves = reinterpret_cast<const uint16_t*>(source);
  if (dtype == DType::kFloat16) return Convert<Float16, Floats>(halves, count, floats);
  if (dtype == DType::kBFloat16) return Convert<BFloat16, Floats>(halves, count, floats);
  Convert<Double, Floats>(reinterpret_cast<const double*>(source), count, floats);
}

void ToOnTarget(const float* floats, size_t count, DType dtype, std::byte* target) {
  using Floats = Plain<float>;
  auto* const halves = reinterpret_cast<uint16_t*>(target);
  if (dtype == DType::kFloat16) return Convert<Floats, Float16>(floats, count, halves);
  if (dtype == DType::kBFloat16) return Convert<Floats, BFloat16>(floats, count, halves);
  Convert<Floats, Double>(floats, count, reinterpret_cast<double*>(target));
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pelton {

HWY_EXPORT(FromOnTarget);
HWY_EXPORT(ToOnTarget);

namespace codec {

bool IsConvertible(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

void FloatsFrom(const std::byte* source, size_t count, DType dtype, float* floats) {
  PELTON_CHECK(IsConvertible(dtype)) << NameOf(dtype);
  if (dtype == DType::kFloat32) {
    if (count != 0) std::memcpy(floats, source, count * sizeof(float));
    return;
  }
  HWY_DYNAMIC_DISPATCH(FromOnTarget)(source, count, dtype, floats);
}

void FloatsTo(const float* floats, size_t count, DType dtype, std::byte* target) {
  PELTON_CHECK(IsConvertible(dtype)) << NameOf(dtype);
  if (dtype == DType::kFloat32) {
    if (count != 0) std::memcpy(target, floats, count * sizeof(float));
    return;
  }
  HWY_DYNAMIC_DISPATCH(ToOnTarget)(floats, count, dtype, target);
}

bool AreFloats(const std::byte* tensor, DType dtype) {
  return dtype == DType::kFloat32 && reinterpret_cast<uintptr_t>(tensor) % alignof(float) == 0;
}

}  // namespace codec
}  // namespace pelton
#endif  // HWY_ONCE
