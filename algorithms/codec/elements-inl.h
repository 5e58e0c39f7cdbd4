// Elements of the floating point types in vectors: as float32, and as bits. For units of Highway's
// foreach_target alone: included once per instruction set, after hwy/foreach_target.h.
#if defined(PELTON_ALGORITHMS_CODEC_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PELTON_ALGORITHMS_CODEC_ELEMENTS_INL_H_
#undef PELTON_ALGORITHMS_CODEC_ELEMENTS_INL_H_
#else
#define PELTON_ALGORITHMS_CODEC_ELEMENTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "comm/reduction/formats-inl.h"
#include "core/memory/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;

// float64 as vectors of float32; the other formats are those of reductions.
struct Float64 {
  using Element = double;
  using D = FloatTag;
#if HWY_TARGET == HWY_SCALAR
  static HWY_INLINE FloatVector Load(D d, const Element* from) {
    double wide;
    std::memcpy(&wide, from, sizeof wide);
    return hn::Set(d, static_cast<float>(wide));
  }
  static HWY_INLINE void Store(D, FloatVector v, Element* to) {
    const double wide = hn::GetLane(v);
    std::memcpy(to, &wide, sizeof wide);
  }
#else
  using Wide = hn::ScalableTag<double>;
  using Half = hn::Rebind<float, Wide>;
  static HWY_INLINE FloatVector Load(D d, const Element* from) {
    const Wide wide;
    const auto lower = hn::DemoteTo(Half(), hn::LoadU(wide, from));
    const auto upper = hn::DemoteTo(Half(), hn::LoadU(wide, from + hn::Lanes(wide)));
    return hn::Combine(d, upper, lower);
  }
  static HWY_INLINE void Store(D, FloatVector v, Element* to) {
    const Wide wide;
    hn::StoreU(hn::PromoteTo(wide, hn::LowerHalf(Half(), v)), wide, to);
    hn::StoreU(hn::PromoteTo(wide, hn::UpperHalf(Half(), v)), wide, to + hn::Lanes(wide));
  }
#endif
};

// f(format) for the format of `dtype`. Requires: convert.h's IsConvertible(dtype).
template <typename F>
HWY_INLINE void WithFormat(DType dtype, F f) {
  if (dtype == DType::kFloat32) return f(Plain<float>());
  if (dtype == DType::kFloat64) return f(Float64());
  if (dtype == DType::kFloat16) return f(Float16());
  f(BFloat16());
}

template <class Format>
HWY_INLINE const typename Format::Element* ElementsAt(const std::byte* tensor) {
  return reinterpret_cast<const typename Format::Element*>(tensor);
}
template <class Format>
HWY_INLINE typename Format::Element* ElementsAt(std::byte* tensor) {
  return reinterpret_cast<typename Format::Element*>(tensor);
}

// Whether LoadPair takes even and odd elements apart instead of the first and the second half: for
// bfloat16, no lane has to move for that.
template <class Format>
inline constexpr bool kSplits = HWY_TARGET != HWY_SCALAR&& std::is_same_v<Format, BFloat16>;

// As many elements as two vectors have lanes.
struct Pair {
  FloatVector a;
  FloatVector b;
};
template <class Format>
HWY_INLINE Pair LoadPair(const typename Format::Element* from) {
  const FloatTag d;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kSplits<Format>) {
    const hn::RebindToUnsigned<FloatTag> bits;
    const auto both = hn::BitCast(bits, hn::LoadU(hn::Repartition<uint16_t, FloatTag>(), from));
    return {hn::BitCast(d, hn::ShiftLeft<16>(both)),
            hn::BitCast(d, hn::And(both, hn::Set(bits, 0xFFFF0000u)))};
  }
#endif
  return {Format::Load(d, from), Format::Load(d, from + hn::Lanes(d))};
}

// The upper 16 bits are what bfloat16 has of a number: half to even.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<FloatTag>> RoundedBits(FloatVector v) {
  const hn::RebindToUnsigned<FloatTag> d;
  const auto bits = hn::BitCast(d, v);
#if HWY_TARGET <= HWY_AVX3
  const auto is_odd = hn::TestBit(bits, hn::Set(d, 0x10000u));
  return hn::Add(bits, hn::IfThenElse(is_odd, hn::Set(d, 0x8000u), hn::Set(d, 0x7FFFu)));
#else
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  return hn::Add(hn::Add(bits, hn::Set(d, 0x7FFFu)), odd);
#endif
}

// Which NaN a kernel has to store.
enum class Nan {
  kAny,
  kOfArithmetic,  // the processor's own, or with a payload of the upper 16 bits alone
};

// Two vectors, in order, as Format::Store rounds them.
template <class Format, Nan kNan = Nan::kAny>
HWY_INLINE void StorePair(FloatVector v0, FloatVector v1, typename Format::Element* to) {
  const FloatTag d;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<Format, BFloat16>) {
    // Adding before cutting could carry a NaN's payload into its sign. It is rare.
    const auto is_nan = [&]() HWY_ATTR { return !hn::AllFalse(d, hn::IsNaN(hn::Add(v0, v1))); };
    if (kNan == Nan::kOfArithmetic || HWY_LIKELY(!is_nan())) {
      const hn::Repartition<uint16_t, FloatTag> halves;
      return hn::StoreU(hn::ConcatOdd(halves, hn::BitCast(halves, RoundedBits(v1)),
                                      hn::BitCast(halves, RoundedBits(v0))),
                        halves, to);
    }
  }
#endif
  Format::Store(d, v0, to);
  Format::Store(d, v1, to + hn::Lanes(d));
}

// Bits of elements, a full vector at a time: those of the 16-bit types as they are, of the others
// those of float32. Without their signs they are ordered as the numbers are, and NaN comes last.
template <class Format>
struct Bits {
  static constexpr bool kNarrow = sizeof(typename Format::Element) == sizeof(uint16_t);
  using Lane = std::conditional_t<kNarrow, uint16_t, uint32_t>;
  using D = hn::ScalableTag<Lane>;
  static constexpr Lane kSign = static_cast<Lane>(Lane{1} << (8 * sizeof(Lane) - 1));
  static constexpr Lane kInfinity = std::is_same_v<Format, Float16>    ? 0x7C00
                                    : std::is_same_v<Format, BFloat16> ? 0x7F80
                                                                       : 0x7F800000;
  static HWY_INLINE hn::Vec<D> Load(const typename Format::Element* from) {
    if constexpr (kNarrow) {
      return LoadAnywhere(D(), from);
    } else {
      return hn::BitCast(D(), Format::Load(FloatTag(), from));
    }
  }
  // As many as a vector of floats has.
  static HWY_INLINE FloatVector LoadFloats(const Lane* lanes) {
    if constexpr (kNarrow) {
      return Format::Load(FloatTag(), lanes);
    } else {
      return hn::BitCast(FloatTag(), hn::LoadU(D(), lanes));
    }
  }
};

template <class D>
HWY_INLINE hn::TFromD<D> LargestLane(D d, hn::Vec<D> v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(hn::TFromD<D>) * hn::MaxLanes(d) > 16) {  // one instruction for eight words
    const hn::Half<D> half;
    return LargestLane(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
#endif
  return hn::GetLane(hn::MaxOfLanes(d, v));
}

// The bits of the largest magnitude; those of a NaN if there is one.
template <class Format>
HWY_INLINE typename Bits<Format>::Lane LargestMagnitude(const typename Format::Element* elements,
                                                        size_t count) {
  using Lane = typename Bits<Format>::Lane;
  const typename Bits<Format>::D d;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, static_cast<Lane>(~Bits<Format>::kSign));
  auto largest0 = hn::Zero(d);
  auto largest1 = hn::Zero(d);
  size_t k = 0;
  for (; k + 2 * lanes <= count; k += 2 * lanes) {
    largest0 = hn::Max(largest0, hn::And(Bits<Format>::Load(elements + k), mask));
    largest1 = hn::Max(largest1, hn::And(Bits<Format>::Load(elements + k + lanes), mask));
  }
  for (; k < count; k += lanes) {  // at most twice
    typename Format::Element in[hn::MaxLanes(d)] = {};
    std::memcpy(in, elements + k, HWY_MIN(lanes, count - k) * sizeof *in);
    largest0 = hn::Max(largest0, hn::And(Bits<Format>::Load(in), mask));
  }
  return LargestLane(d, hn::Max(largest0, largest1));
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PELTON_ALGORITHMS_CODEC_ELEMENTS_INL_H_
