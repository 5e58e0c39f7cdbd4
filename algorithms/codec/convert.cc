// Compiled once per instruction set (Highway's foreach_target); the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "algorithms/codec/convert.cc"
#include "algorithms/codec/convert.h"

#include <cstring>
#include <type_traits>

#include "core/base/check.h"
#include "core/base/instruction_sets.h"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "algorithms/codec/elements-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// step(from, to) for each `per_step` elements, the last ones through buffers of as many.
template <size_t kMaxPerStep, typename Source, typename Target, typename Step>
HWY_INLINE void ForEachStep(const Source* from, size_t count, size_t per_step, Target* to,
                            Step step) {
  size_t i = 0;
  for (; i + per_step <= count; i += per_step) step(from + i, to + i);
  if (i == count) return;
  Source in[kMaxPerStep] = {};
  Target out[kMaxPerStep];
  std::memcpy(in, from + i, (count - i) * sizeof *in);
  step(in, out);
  std::memcpy(to + i, out, (count - i) * sizeof *out);
}

template <class From, class To>
HWY_FLATTEN void ConvertAll(const typename From::Element* from, size_t count,
                            typename To::Element* to) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  ForEachStep<2 * hn::MaxLanes(d)>(
      from, count, 2 * lanes, to,
      [&](const typename From::Element* in, typename To::Element* out)
          HWY_ATTR { StorePair<To>(From::Load(d, in), From::Load(d, in + lanes), out); });
}

// Makes every NaN quiet.
template <class Format>
HWY_FLATTEN void QuietAll(const uint16_t* from, size_t count, uint16_t* to) {
  const hn::ScalableTag<uint16_t> d;
  const hn::RebindToSigned<decltype(d)> i16;
  constexpr uint16_t kInfinity = Bits<Format>::kInfinity;
  constexpr uint16_t kQuiet = ((~kInfinity & 0x7FFF) + 1) / 2;
  ForEachStep<hn::MaxLanes(d)>(
      from, count, hn::Lanes(d), to, [&](const uint16_t* in, uint16_t* out) HWY_ATTR {
        const auto x = LoadAnywhere(d, in);
        const auto magnitude = hn::BitCast(i16, hn::And(x, hn::Set(d, uint16_t{0x7FFF})));
        const auto is_nan = hn::Gt(magnitude, hn::Set(i16, int16_t{kInfinity}));
        const auto quiet =
            hn::IfThenElseZero(hn::RebindMask(d, is_nan), hn::Set(d, uint16_t{kQuiet}));
        StoreAnywhere(hn::Or(x, quiet), d, out);
      });
}

// To its own type. A copy of many bytes does without reading the target's lines first, so a block
// is copied and then, in the cache, looked at for NaN.
template <class Format>
void CopyAll(const uint16_t* from, size_t count, uint16_t* to) {
  for (size_t begin = 0; begin < count; begin += codec::kBlockCount) {
    const size_t length = HWY_MIN(codec::kBlockCount, count - begin);
    std::memcpy(to + begin, from + begin, length * sizeof *to);
    if (LargestMagnitude<Format>(from + begin, length) > Bits<Format>::kInfinity) {
      QuietAll<Format>(from + begin, length, to + begin);
    }
  }
}

void ConvertOnTarget(const std::byte* source, size_t count, codec::Conversion types,
                     std::byte* target) {
  WithFormat(types.from, [&](auto from) HWY_ATTR {
    WithFormat(types.to, [&](auto to) HWY_ATTR {
      using From = decltype(from);
      using To = decltype(to);
      const auto* const in = ElementsAt<From>(source);
      auto* const out = ElementsAt<To>(target);
      if constexpr (std::is_same_v<From, To> && Bits<From>::kNarrow) {
        CopyAll<From>(in, count, out);
      } else {
        ConvertAll<From, To>(in, count, out);
      }
    });
  });
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pelton {

HWY_EXPORT(ConvertOnTarget);

namespace codec {

bool IsConvertible(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

void Convert(const std::byte* source, size_t count, Conversion types, std::byte* target) {
  PELTON_CHECK(IsConvertible(types.from)) << NameOf(types.from);
  PELTON_CHECK(IsConvertible(types.to)) << NameOf(types.to);
  if (types.from == DType::kFloat32 && types.to == DType::kFloat32) {
    if (count != 0) std::memcpy(target, source, count * sizeof(float));
    return;
  }
  HWY_DYNAMIC_DISPATCH(ConvertOnTarget)(source, count, types, target);
}

void FloatsFrom(const std::byte* source, size_t count, DType dtype, float* floats) {
  Convert(source, count, {dtype, DType::kFloat32}, reinterpret_cast<std::byte*>(floats));
}

void FloatsTo(const float* floats, size_t count, DType dtype, std::byte* target) {
  Convert(reinterpret_cast<const std::byte*>(floats), count, {DType::kFloat32, dtype}, target);
}

}  // namespace codec
}  // namespace pelton
#endif  // HWY_ONCE
