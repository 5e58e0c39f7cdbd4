// How SIMD units read and write vectors of the floating point types. For units of Highway's
// foreach_target alone: included once per instruction set, after hwy/foreach_target.h.
#if defined(PELTON_COMM_REDUCTION_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PELTON_COMM_REDUCTION_FORMATS_INL_H_
#undef PELTON_COMM_REDUCTION_FORMATS_INL_H_
#else
#define PELTON_COMM_REDUCTION_FORMATS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "comm/reduction/half.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Nothing needs to be aligned; the scalar target's own LoadU and StoreU want whole elements.
template <class D, typename T>
HWY_INLINE hn::Vec<D> LoadAnywhere(D d, const T* from) {
#if HWY_TARGET == HWY_SCALAR
  T lane;
  std::memcpy(&lane, from, sizeof lane);
  return hn::Set(d, lane);
#else
  return hn::LoadU(d, from);
#endif
}

template <class D, typename T>
HWY_INLINE void StoreAnywhere(hn::Vec<D> v, D d, T* to) {
#if HWY_TARGET == HWY_SCALAR
  const T lane = hn::GetLane(v);
  std::memcpy(to, &lane, sizeof lane);
#else
  hn::StoreU(v, d, to);
#endif
}

// How a kernel reads and writes vectors of one dtype. `Lane` is what it computes in.
template <typename T>
struct Plain {
  using Lane = T;
  using Element = T;
  using D = hn::ScalableTag<T>;
  static HWY_INLINE hn::Vec<D> Load(D d, const Element* from) { return LoadAnywhere(d, from); }
  static HWY_INLINE void Store(D d, hn::Vec<D> v, Element* to) { StoreAnywhere(v, d, to); }
};

struct BFloat16 {
  using Lane = float;
  using Element = uint16_t;
  using D = hn::ScalableTag<float>;
  using Narrow = hn::Rebind<uint16_t, D>;
  using Bits = hn::RebindToUnsigned<D>;

  static HWY_INLINE hn::Vec<D> Load(D d, const Element* from) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(Bits(), LoadAnywhere(Narrow(), from))));
  }
  // Highway's own conversion truncates; this one rounds half to even and keeps NaN a NaN.
  static HWY_INLINE void Store(D d, hn::Vec<D> v, Element* to) {
    const Bits bits_tag;
    const hn::RebindToSigned<D> signed_tag;
    const auto bits = hn::BitCast(bits_tag, v);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(bits_tag, 1u));
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(bits_tag, 0x7FFFu)), odd));
    const auto quiet = hn::Or(upper, hn::Set(bits_tag, 0x40u));
    const auto is_nan = hn::RebindMask(bits_tag, hn::IsNaN(v));
    const auto result = hn::IfThenElse(is_nan, quiet, rounded);
    StoreAnywhere(hn::DemoteTo(Narrow(), hn::BitCast(signed_tag, result)), Narrow(), to);
  }
};

struct Float16 {
  using Lane = float;
  using Element = uint16_t;
  using D = hn::ScalableTag<float>;
#if HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  using Narrow = hn::Rebind<hwy::float16_t, D>;
  static HWY_INLINE hn::Vec<D> Load(D d, const Element* from) {
    return hn::PromoteTo(d, hn::LoadU(Narrow(), reinterpret_cast<const hwy::float16_t*>(from)));
  }
  static HWY_INLINE void Store(D, hn::Vec<D> v, Element* to) {
    hn::StoreU(hn::DemoteTo(Narrow(), v), Narrow(), reinterpret_cast<hwy::float16_t*>(to));
  }
#else
  static HWY_INLINE hn::Vec<D> Load(D d, const Element* from) {
    HWY_ALIGN float lanes[hn::MaxLanes(D())];
    Element halves[hn::MaxLanes(D())];
    std::memcpy(halves, from, hn::Lanes(d) * sizeof(Element));
    for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = FloatFromFloat16(halves[i]);
    return hn::Load(d, lanes);
  }
  static HWY_INLINE void Store(D d, hn::Vec<D> v, Element* to) {
    HWY_ALIGN float lanes[hn::MaxLanes(D())];
    hn::Store(v, d, lanes);
    Element halves[hn::MaxLanes(D())];
    for (size_t i = 0; i < hn::Lanes(d); ++i) halves[i] = Float16FromFloat(lanes[i]);
    std::memcpy(to, halves, hn::Lanes(d) * sizeof(Element));
  }
#endif
};

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PELTON_COMM_REDUCTION_FORMATS_INL_H_
