// Compiled once per instruction set (Highway's foreach_target); the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "algorithms/codec/sign_kernels.cc"
#include <bit>
#include <cstring>

#include "algorithms/codec/block_kernels.h"
#include "algorithms/codec/specification.h"
#include "core/base/instruction_sets.h"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "algorithms/codec/elements-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using codec::Blocks;

constexpr size_t kWord = 32;  // signs in a word

template <class Format>
HWY_INLINE uint32_t SignsOf(const typename Format::Element* elements) {
  const hn::RebindToSigned<typename Bits<Format>::D> i;
  constexpr size_t kLanes = hn::MaxLanes(i);
  uint32_t word = 0;
  for (size_t k = 0; k < kWord; k += kLanes) {
    const auto bits = hn::BitCast(i, Bits<Format>::Load(elements + k));
    uint8_t mask[8];
    hn::StoreMaskBits(i, hn::Lt(bits, hn::Zero(i)), mask);
    uint32_t part = 0;
    std::memcpy(&part, mask, (kLanes + 7) / 8);
    word |= part << k;
  }
  return word;
}

// Sums magnitudes in the parts and the order of specification.h, with any width of vectors.
struct PartialSums {
  static constexpr size_t kParts = codec::kSumParts;
  static constexpr size_t kVectors = kParts / hn::MaxLanes(FloatTag());
  static_assert(kVectors * hn::MaxLanes(FloatTag()) == kParts);
  static_assert(kWord % kParts == 0);
  FloatVector sums[kVectors];

  HWY_INLINE PartialSums() {
    for (FloatVector& sum : sums) sum = hn::Zero(FloatTag());
  }
  template <class Format>
  HWY_INLINE void AddWord(const typename Format::Element* elements) {
    const FloatTag d;
    for (size_t p = 0; p < kWord; p += kParts) {
      for (size_t v = 0; v < kVectors; ++v) {
        const auto* const from = elements + p + v * hn::MaxLanes(d);
        sums[v] = hn::Add(sums[v], hn::Abs(Format::Load(d, from)));
      }
    }
  }
  HWY_INLINE float Total() const {
    const FloatTag d;
    HWY_ALIGN float parts[kParts];
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], d, parts + v * hn::MaxLanes(d));
    for (size_t half = kParts / 2; half != 0; half /= 2) {
      for (size_t p = 0; p < half; ++p) parts[p] += parts[p + half];
    }
    return parts[0];
  }
};

// Writes the signs and returns the mean. In one pass: the sums wait for each other, and the signs
// are taken meanwhile.
template <class Format>
HWY_INLINE float EncodeOneBitBlock(const typename Format::Element* elements, size_t count,
                                   uint8_t* payload) {
  PartialSums sums;
  size_t i = 0;
  for (; i + kWord <= count; i += kWord) {
    sums.AddWord<Format>(elements + i);
    const uint32_t word = SignsOf<Format>(elements + i);
    std::memcpy(payload + i / 8, &word, sizeof word);
  }
  if (i < count) {
    typename Format::Element rest[kWord] = {};
    std::memcpy(rest, elements + i, (count - i) * sizeof *rest);
    sums.AddWord<Format>(rest);
    const uint32_t word = SignsOf<Format>(rest);
    std::memcpy(payload + i / 8, &word, (count - i + 7) / 8);
  }
  return codec::MeanMagnitude(sums.Total(), static_cast<float>(count));
}

void EncodeOneBitOnTarget(const std::byte* elements, Blocks blocks, float* scales,
                          uint8_t* payload) {
  WithFormat(blocks.dtype, [&](auto format) HWY_ATTR {
    using Format = decltype(format);
    const auto* const from = ElementsAt<Format>(elements);
    for (size_t begin = 0; begin < blocks.count; begin += blocks.block) {
      const size_t length = HWY_MIN(blocks.block, blocks.count - begin);
      *scales++ = EncodeOneBitBlock<Format>(from + begin, length, payload + begin / 8);
    }
  });
}

// The two elements that a block has, in vectors.
template <typename Element>
struct BothSigns {
  using Lane = hwy::MakeUnsigned<Element>;
  using D = hn::ScalableTag<Lane>;
  hn::Vec<D> positive;
  hn::Vec<D> negative;

  // kWord elements.
  HWY_INLINE void Write(uint32_t word, Element* elements) const {
    constexpr size_t kLanes = hn::MaxLanes(D());
    auto* const to = reinterpret_cast<Lane*>(elements);
    for (size_t i = 0; i < kWord; i += kLanes) {
      const uint64_t bits = word >> i;
      uint8_t mask[8];
      std::memcpy(mask, &bits, sizeof mask);
      const auto is_negative = hn::LoadMaskBits(D(), mask);
      StoreAnywhere(hn::IfThenElse(is_negative, negative, positive), D(), to + i);
    }
  }
};

template <class Format>
HWY_INLINE BothSigns<typename Format::Element> BothSignsOf(float scale) {
  using Signs = BothSigns<typename Format::Element>;
  const FloatTag d;
  typename Format::Element lanes[hn::MaxLanes(d)];
  const auto in_all = [&](float x) HWY_ATTR {
    Format::Store(d, hn::Set(d, x), lanes);
    return hn::Set(typename Signs::D(), std::bit_cast<typename Signs::Lane>(lanes[0]));
  };
  return {in_all(scale), in_all(-scale)};
}

template <class Format>
HWY_INLINE void DecodeOneBitBlock(float scale, const uint8_t* payload, size_t count,
                                  typename Format::Element* elements) {
  const auto signs = BothSignsOf<Format>(scale);
  size_t i = 0;
  uint32_t word = 0;
  for (; i + kWord <= count; i += kWord) {
    std::memcpy(&word, payload + i / 8, sizeof word);
    signs.Write(word, elements + i);
  }
  if (i == count) return;
  typename Format::Element rest[kWord];
  word = 0;
  std::memcpy(&word, payload + i / 8, (count - i + 7) / 8);
  signs.Write(word, rest);
  std::memcpy(elements + i, rest, (count - i) * sizeof *rest);
}

void DecodeOneBitOnTarget(const float* scales, const uint8_t* payload, Blocks blocks,
                          std::byte* elements) {
  WithFormat(blocks.dtype, [&](auto format) HWY_ATTR {
    using Format = decltype(format);
    auto* const to = ElementsAt<Format>(elements);
    for (size_t begin = 0; begin < blocks.count; begin += blocks.block) {
      const size_t length = HWY_MIN(blocks.block, blocks.count - begin);
      DecodeOneBitBlock<Format>(*scales++, payload + begin / 8, length, to + begin);
    }
  });
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pelton {

HWY_EXPORT(EncodeOneBitOnTarget);
HWY_EXPORT(DecodeOneBitOnTarget);

namespace codec {

void EncodeOneBitBlocks(const std::byte* elements, Blocks blocks, float* scales, uint8_t* payload) {
  HWY_DYNAMIC_DISPATCH(EncodeOneBitOnTarget)(elements, blocks, scales, payload);
}

void DecodeOneBitBlocks(const float* scales, const uint8_t* payload, Blocks blocks,
                        std::byte* elements) {
  HWY_DYNAMIC_DISPATCH(DecodeOneBitOnTarget)(scales, payload, blocks, elements);
}

}  // namespace codec
}  // namespace pelton
#endif  // HWY_ONCE
