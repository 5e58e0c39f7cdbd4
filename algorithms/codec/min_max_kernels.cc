// Compiled once per instruction set (Highway's foreach_target); the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "algorithms/codec/min_max_kernels.cc"
#include "algorithms/codec/min_max_kernels.h"

#include <cmath>
#include <cstring>

#include "core/base/instruction_sets.h"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "algorithms/codec/bytes-inl.h"
#include "algorithms/codec/elements-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using codec::MinMax;
using codec::MinMaxScale;

// f(bits, chain) for all elements in vectors, some of them more than once.
template <class Format, typename F>
HWY_INLINE void ForEachVector(const typename Format::Element* elements, uint64_t count, F f) {
  constexpr size_t kMost = hn::MaxLanes(typename Bits<Format>::D());
  const size_t lanes = hn::Lanes(typename Bits<Format>::D());
  uint64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    f(Bits<Format>::Load(elements + i), 0);
    f(Bits<Format>::Load(elements + i + lanes), 1);
  }
  typename Format::Element in[2 * kMost];
  for (auto& element : in) std::memcpy(&element, elements, sizeof element);
  std::memcpy(in, elements + i, static_cast<size_t>(count - i) * sizeof *in);
  f(Bits<Format>::Load(in), 0);
  f(Bits<Format>::Load(in + lanes), 1);
}

// Of all elements by their bits as unsigned numbers: there negative ones come after all others, the
// more so the larger they are in magnitude.
template <class Format>
HWY_FLATTEN typename Bits<Format>::Lane LeastOf(const typename Format::Element* elements,
                                                uint64_t count) {
  const typename Bits<Format>::D d;
  hn::Vec<decltype(d)> least[2] = {hn::Not(hn::Zero(d)), hn::Not(hn::Zero(d))};
  ForEachVector<Format>(elements, count, [&](auto bits, int chain) HWY_ATTR {
    least[chain] = hn::Min(least[chain], bits);
  });
  return static_cast<typename Bits<Format>::Lane>(
      ~LargestLane(d, hn::Not(hn::Min(least[0], least[1]))));
}

template <class Format>
HWY_FLATTEN MinMax RangeOf(const typename Format::Element* elements, uint64_t count) {
  using Lane = typename Bits<Format>::Lane;
  constexpr Lane kSign = Bits<Format>::kSign;
  const typename Bits<Format>::D d;
  const hn::RebindToSigned<decltype(d)> i;
  const auto lowest = hn::BitCast(i, hn::Set(d, kSign));
  hn::Vec<decltype(d)> far[2] = {hn::Zero(d), hn::Zero(d)};
  hn::Vec<decltype(i)> high[2] = {lowest, lowest};
  ForEachVector<Format>(elements, count, [&](auto bits, int chain) HWY_ATTR {
    far[chain] = hn::Max(far[chain], bits);
    high[chain] = hn::Max(high[chain], hn::BitCast(i, bits));
  });
  auto min = LargestLane(d, hn::Max(far[0], far[1]));
  auto max = static_cast<Lane>(LargestLane(i, hn::Max(high[0], high[1])));
  if (min < kSign || max >= kSign) {  // one sign alone: the smallest magnitude is the other end
    const Lane least = LeastOf<Format>(elements, count);
    (min < kSign ? min : max) = least;
  }
  constexpr Lane kInfinity = Bits<Format>::kInfinity;
  if ((min & ~kSign) > kInfinity || (max & ~kSign) > kInfinity) return {NAN, NAN};
  const Lane both[hn::MaxLanes(d) + 1] = {min, max};
  return {hn::GetLane(Bits<Format>::LoadFloats(both)),
          hn::GetLane(Bits<Format>::LoadFloats(both + 1))};
}

MinMax RangeOnTarget(const std::byte* elements, uint64_t count, DType dtype) {
  MinMax range;
  WithFormat(dtype, [&](auto format) HWY_ATTR {
    using Format = decltype(format);
    range = RangeOf<Format>(ElementsAt<Format>(elements), count);
  });
  return range;
}

// Where no level is beyond 2^22 in magnitude, integers hold level and difference exactly.
struct NarrowLevels {
  FloatVector scale;
  int32_t offset;  // of what it gives
  explicit HWY_INLINE NarrowLevels(MinMaxScale s)
      : scale(hn::Set(FloatTag(), s.scale)), offset(kRounderBits + static_cast<int32_t>(s.lower)) {}
  HWY_INLINE IntVector operator()(FloatVector x) const { return Rounded(hn::Mul(x, scale)); }
};

// Levels of any size, in float32 as specified; their differences are small.
struct WideLevels {
  FloatVector scale;
  FloatVector lower;
  static constexpr int32_t offset = kRounderBits;
  explicit HWY_INLINE WideLevels(MinMaxScale s)
      : scale(hn::Set(FloatTag(), s.scale)), lower(hn::Set(FloatTag(), s.lower)) {}
  HWY_INLINE IntVector operator()(FloatVector x) const {
    return Rounded(hn::Sub(hn::Round(hn::Mul(x, scale)), lower));
  }
};

// No element exceeds the maximum, so none of its levels the upper one: the specification's `min` is
// there without an instruction. Storing saturates.
template <class Format, class ToLevels>
HWY_FLATTEN void EncodeBy(ToLevels level, const typename Format::Element* elements, size_t count,
                          uint8_t* bytes) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const auto encode = [&](const typename Format::Element* from, uint8_t* to) HWY_ATTR {
    const Pair x = LoadPair<Format>(from);
    const Pair y = LoadPair<Format>(from + 2 * lanes);
    StoreAsBytes<Format>({level(x.a), level(x.b), level(y.a), level(y.b), level.offset}, to);
  };
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) encode(elements + i, bytes + i);
  if (i == count) return;
  typename Format::Element in[4 * hn::MaxLanes(d)] = {};
  uint8_t out[4 * hn::MaxLanes(d)];
  std::memcpy(in, elements + i, (count - i) * sizeof *in);
  encode(in, out);
  std::memcpy(bytes + i, out, count - i);
}

void EncodeMinMaxOnTarget(const std::byte* elements, size_t count, DType dtype, MinMaxScale s,
                          uint8_t* bytes) {
  constexpr float kNarrow = 1 << 21;
  if (!codec::IsUsable(s)) {
    if (count != 0) std::memset(bytes, 255, count);
    return;
  }
  WithFormat(dtype, [&](auto format) HWY_ATTR {
    using Format = decltype(format);
    const auto* const from = ElementsAt<Format>(elements);
    if (s.lower > -kNarrow && s.upper < kNarrow) {
      EncodeBy<Format>(NarrowLevels(s), from, count, bytes);
    } else {
      EncodeBy<Format>(WideLevels(s), from, count, bytes);
    }
  });
}

// (byte + lower) / scale, by a division.
struct Divided {
  FloatVector lower;
  FloatVector scale;
  explicit HWY_INLINE Divided(MinMaxScale s)
      : lower(hn::Set(FloatTag(), s.lower)), scale(hn::Set(FloatTag(), s.scale)) {}
  HWY_INLINE FloatVector operator()(const uint8_t* bytes) const {
    return hn::Div(hn::Add(LoadBytes(bytes), lower), scale);
  }
};

// About the same by a product.
struct Multiplied {
  FloatVector lower;
  FloatVector inverse;
  explicit HWY_INLINE Multiplied(MinMaxScale s)
      : lower(hn::Set(FloatTag(), s.lower)), inverse(hn::Set(FloatTag(), 1.0f / s.scale)) {}
  HWY_INLINE FloatVector operator()(const uint8_t* bytes) const {
    return hn::Mul(hn::Add(LoadBytes(bytes), lower), inverse);
  }
};

// The same by a product, and one step of Newton's on what it leaves.
struct Corrected {
  FloatVector lower;
  FloatVector scale;
  FloatVector inverse;
  explicit HWY_INLINE Corrected(MinMaxScale s)
      : lower(hn::Set(FloatTag(), s.lower)),
        scale(hn::Set(FloatTag(), s.scale)),
        inverse(hn::Set(FloatTag(), 1.0f / s.scale)) {}
  HWY_INLINE FloatVector operator()(const uint8_t* bytes) const {
    const auto level = hn::Add(LoadBytes(bytes), lower);
    const auto quotient = hn::Mul(level, inverse);
    return hn::MulAdd(hn::NegMulAdd(quotient, scale, level), inverse, quotient);
  }
};

template <class Format, class Quotients>
HWY_FLATTEN void DecodeBy(Quotients quotients, const uint8_t* bytes, uint64_t count,
                          typename Format::Element* elements) {
  const size_t lanes = hn::Lanes(FloatTag());
  const auto decode = [&](const uint8_t* from, typename Format::Element* to) HWY_ATTR {
    const auto v0 = quotients(from);
    const auto v1 = quotients(from + lanes);
    const auto v2 = quotients(from + 2 * lanes);
    const auto v3 = quotients(from + 3 * lanes);
    StorePair<Format, Nan::kOfArithmetic>(v0, v1, to);
    StorePair<Format, Nan::kOfArithmetic>(v2, v3, to + 2 * lanes);
  };
  uint64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) decode(bytes + i, elements + i);
  if (i == count) return;
  uint8_t in[4 * hn::MaxLanes(FloatTag())] = {};
  typename Format::Element out[4 * hn::MaxLanes(FloatTag())];
  const auto rest = static_cast<size_t>(count - i);
  std::memcpy(in, bytes + i, rest);
  decode(in, out);
  std::memcpy(elements + i, out, rest * sizeof *out);
}

// Whether it decodes every byte as `want` has it: several times the rate of dividing.
template <class Format, class Quotients>
bool Decodes(Quotients quotients, const typename Format::Element* want) {
  uint8_t bytes[256];
  typename Format::Element got[256];
  for (int i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(i);
  DecodeBy<Format>(quotients, bytes, 256, got);
  return std::memcmp(got, want, sizeof got) == 0;
}

void DecodeMinMaxOnTarget(const uint8_t* bytes, uint64_t count, MinMaxScale s, DType dtype,
                          std::byte* elements) {
  WithFormat(dtype, [&](auto format) HWY_ATTR {
    using Format = decltype(format);
    auto* const to = ElementsAt<Format>(elements);
    uint8_t all[256];
    typename Format::Element want[256];
    for (int i = 0; i < 256; ++i) all[i] = static_cast<uint8_t>(i);
    DecodeBy<Format>(Divided(s), all, 256, want);
    if (Decodes<Format>(Multiplied(s), want)) {
      DecodeBy<Format>(Multiplied(s), bytes, count, to);
    } else if (Decodes<Format>(Corrected(s), want)) {
      DecodeBy<Format>(Corrected(s), bytes, count, to);
    } else {
      DecodeBy<Format>(Divided(s), bytes, count, to);
    }
  });
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pelton {

HWY_EXPORT(RangeOnTarget);
HWY_EXPORT(EncodeMinMaxOnTarget);
HWY_EXPORT(DecodeMinMaxOnTarget);

namespace codec {

MinMax MinMaxOfAll(const std::byte* elements, uint64_t count, DType dtype) {
  return HWY_DYNAMIC_DISPATCH(RangeOnTarget)(elements, count, dtype);
}

void EncodeMinMaxAll(const std::byte* elements, size_t count, DType dtype, MinMaxScale s,
                     uint8_t* bytes) {
  HWY_DYNAMIC_DISPATCH(EncodeMinMaxOnTarget)(elements, count, dtype, s, bytes);
}

void DecodeMinMaxAll(const uint8_t* bytes, uint64_t count, MinMaxScale s, DType dtype,
                     std::byte* elements) {
  HWY_DYNAMIC_DISPATCH(DecodeMinMaxOnTarget)(bytes, count, s, dtype, elements);
}

}  // namespace codec
}  // namespace pelton
#endif  // HWY_ONCE
