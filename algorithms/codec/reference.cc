#include "algorithms/codec/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "algorithms/codec/layout.h"
#include "algorithms/codec/specification.h"
#include "comm/reduction/half.h"
#include "core/base/check.h"

namespace pelton::codec {
namespace {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

// What a reference sees of a call. Threads: a value. Owns: nothing.
struct Call {
  const CodecOptions& options;
  DType dtype;
};

// Threads: a value. Owns: nothing.
struct Reference {
  Bytes (*encode)(const Call&, const Floats&);
  Floats (*decode)(const Call&, const Bytes&, uint64_t count);
};

template <typename T>
T At(const Bytes& bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <typename T>
void Put(Bytes& bytes, uint64_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

float Element(const std::byte* from, DType dtype) {
  uint16_t half;
  float single;
  double wide;
  std::memcpy(&half, from, sizeof half);
  if (dtype == DType::kFloat16) return FloatFromFloat16(half);
  if (dtype == DType::kBFloat16) return FloatFromBFloat16(half);
  std::memcpy(&single, from, sizeof single);  // the other two are at least as large
  if (dtype == DType::kFloat32) return single;
  PELTON_CHECK(dtype == DType::kFloat64) << NameOf(dtype);
  std::memcpy(&wide, from, sizeof wide);
  return static_cast<float>(wide);
}

void PutElement(Bytes& to, uint64_t offset, float value, DType dtype) {
  if (dtype == DType::kFloat16) return Put(to, offset, Float16FromFloat(value));
  if (dtype == DType::kBFloat16) return Put(to, offset, BFloat16FromFloat(value));
  if (dtype == DType::kFloat32) return Put(to, offset, value);
  Put(to, offset, static_cast<double>(value));
}

// ---- min_max_uint8

// The sign of a zero and the payload of a NaN are made the same.
float Canonical(float bound) { return std::isnan(bound) ? NAN : bound + 0.0f; }

Bytes EncodeMinMaxUInt8(const Call& call, const Floats& x) {
  MinMax range = {0, 0};
  if (!x.empty()) range = {INFINITY, -INFINITY};
  for (const float element : x) range = Widened(range, element);
  range = {Canonical(range.min), Canonical(range.max)};
  Bytes encoded(32 + RoundedUpToPart(x.size()));
  PutElement(encoded, 0, range.min, call.dtype);
  PutElement(encoded, SizeOf(call.dtype), range.max, call.dtype);
  const MinMaxScale scale = MinMaxScaleOf(range);
  for (size_t i = 0; i < x.size(); ++i) Put(encoded, 32 + i, EncodeMinMax(x[i], scale));
  return encoded;
}

Floats DecodeMinMaxUInt8(const Call& call, const Bytes& encoded, uint64_t count) {
  const MinMaxScale scale =
      MinMaxScaleOf({Element(encoded.data(), call.dtype),
                     Element(encoded.data() + SizeOf(call.dtype), call.dtype)});
  Floats x(count);
  for (size_t i = 0; i < count; ++i) x[i] = DecodeMinMax(At<uint8_t>(encoded, 32 + i), scale);
  return x;
}

// ---- float16 and bfloat16

template <DType kNarrow>
Bytes EncodeCast(const Call&, const Floats& x) {
  Bytes encoded(RoundedUpToPart(2 * x.size()));
  for (size_t i = 0; i < x.size(); ++i) PutElement(encoded, 2 * i, x[i], kNarrow);
  return encoded;
}

template <DType kNarrow>
Floats DecodeCast(const Call&, const Bytes& encoded, uint64_t count) {
  return FloatsOfElements(encoded.data(), count, kNarrow);
}

// ---- block_uint8, block_int4, one_bit

uint64_t BlockOption(const Call& call, uint64_t otherwise) {
  const auto found = call.options.find("block");
  return found == call.options.end() ? otherwise : std::stoull(found->second);
}

uint64_t BlockCount(uint64_t count, uint64_t block) { return (count + block - 1) / block; }

// Of kBits each, the first in the lowest bits. What follows the scales.
template <int kBits>
void PutCode(Bytes& payload, uint64_t offset, uint64_t i, uint8_t code) {
  std::byte& byte = payload[offset + i * kBits / 8];
  byte |= static_cast<std::byte>(code << (i * kBits % 8));
}

template <int kBits>
uint8_t Code(const Bytes& payload, uint64_t offset, uint64_t i) {
  const auto byte = static_cast<uint8_t>(payload[offset + i * kBits / 8]);
  return static_cast<uint8_t>(byte >> (i * kBits % 8)) & ((1 << kBits) - 1);
}

// The largest magnitude of a block, or NaN.
float LargestMagnitude(const float* x, uint64_t count) {
  float largest = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (!(std::fabs(x[i]) <= largest)) largest = std::isnan(largest) ? NAN : std::fabs(x[i]);
  }
  return largest;
}

template <int kBits, uint64_t kBlock>
Bytes EncodeLevelBlocks(const Call& call, const Floats& x) {
  constexpr Levels kLevels = kBits == 8 ? kUInt8Levels : kInt4Levels;
  const uint64_t block = BlockOption(call, kBlock);
  const uint64_t payload = RoundedUpToPart(4 * BlockCount(x.size(), block));
  Bytes encoded(payload + RoundedUpToPart((x.size() * kBits + 7) / 8));
  for (uint64_t b = 0; b * block < x.size(); ++b) {
    const uint64_t end = std::min<uint64_t>((b + 1) * block, x.size());
    const BlockScale s = BlockScaleOf(LargestMagnitude(&x[b * block], end - b * block), kLevels);
    Put(encoded, 4 * b, s.scale);
    for (uint64_t i = b * block; i < end; ++i) {
      PutCode<kBits>(encoded, payload, i, EncodeLevel(x[i], s, kLevels));
    }
  }
  return encoded;
}

template <int kBits, uint64_t kBlock>
Floats DecodeLevelBlocks(const Call& call, const Bytes& encoded, uint64_t count) {
  constexpr Levels kLevels = kBits == 8 ? kUInt8Levels : kInt4Levels;
  const uint64_t block = BlockOption(call, kBlock);
  const uint64_t payload = RoundedUpToPart(4 * BlockCount(count, block));
  Floats x(count);
  for (uint64_t i = 0; i < count; ++i) {
    x[i] =
        DecodeLevel(Code<kBits>(encoded, payload, i), At<float>(encoded, i / block * 4), kLevels);
  }
  return x;
}

float SumOfMagnitudes(const float* x, uint64_t count) {
  float parts[kSumParts] = {};
  for (uint64_t i = 0; i < count; ++i) parts[i % kSumParts] += std::fabs(x[i]);
  for (int half = kSumParts / 2; half != 0; half /= 2) {
    for (int p = 0; p < half; ++p) parts[p] += parts[p + half];
  }
  return parts[0];
}

Bytes EncodeOneBit(const Call& call, const Floats& x) {
  const uint64_t block = BlockOption(call, 1024);
  const uint64_t payload = RoundedUpToPart(4 * BlockCount(x.size(), block));
  Bytes encoded(payload + RoundedUpToPart((x.size() + 7) / 8));
  for (uint64_t b = 0; b * block < x.size(); ++b) {
    const uint64_t length = std::min<uint64_t>(block, x.size() - b * block);
    Put(encoded, 4 * b, MeanMagnitude(SumOfMagnitudes(&x[b * block], length), length));
  }
  for (uint64_t i = 0; i < x.size(); ++i) {
    PutCode<1>(encoded, payload, i, std::signbit(x[i]) ? 1 : 0);
  }
  return encoded;
}

Floats DecodeOneBit(const Call& call, const Bytes& encoded, uint64_t count) {
  const uint64_t block = BlockOption(call, 1024);
  const uint64_t payload = RoundedUpToPart(4 * BlockCount(count, block));
  Floats x(count);
  for (uint64_t i = 0; i < count; ++i) {
    const float mean = At<float>(encoded, i / block * 4);
    x[i] = Code<1>(encoded, payload, i) != 0 ? -mean : mean;
  }
  return x;
}

// ---- top_k

TopKLayout TopKLayoutOf(const Call& call, uint64_t count) {
  const auto found = call.options.find("ratio");
  const double ratio = found == call.options.end() ? 0.01 : std::stod(found->second);
  return TopKLayout(count, ratio, call.dtype);
}

Bytes EncodeTopK(const Call& call, const Floats& x) {
  const TopKLayout layout = TopKLayoutOf(call, x.size());
  std::vector<uint32_t> order(x.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto key = [&](uint32_t i) { return std::bit_cast<uint32_t>(std::fabs(x[i])); };
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return key(a) > key(b); });
  order.resize(layout.kept);
  std::sort(order.begin(), order.end());
  Bytes encoded(layout.Bytes());
  for (uint64_t i = 0; i < order.size(); ++i) {
    Put(encoded, i * sizeof order[i], order[i]);
    PutElement(encoded, layout.values_at + i * SizeOf(layout.value_dtype), x[order[i]],
               layout.value_dtype);
  }
  return encoded;
}

Floats DecodeTopK(const Call& call, const Bytes& encoded, uint64_t count) {
  const TopKLayout layout = TopKLayoutOf(call, count);
  Floats x(count);
  for (uint64_t i = 0; i < layout.kept; ++i) {
    const uint64_t index = At<uint32_t>(encoded, i * sizeof(uint32_t));
    if (index >= count) continue;
    const uint64_t value_at = layout.values_at + i * SizeOf(layout.value_dtype);
    x[index] = Element(encoded.data() + value_at, layout.value_dtype);
  }
  return x;
}

absl::StatusOr<Reference> Find(const std::string& name) {
  static const auto* const references = new std::map<std::string, Reference>{
      {"min_max_uint8", {EncodeMinMaxUInt8, DecodeMinMaxUInt8}},
      {"float16", {EncodeCast<DType::kFloat16>, DecodeCast<DType::kFloat16>}},
      {"bfloat16", {EncodeCast<DType::kBFloat16>, DecodeCast<DType::kBFloat16>}},
      {"block_uint8", {EncodeLevelBlocks<8, 256>, DecodeLevelBlocks<8, 256>}},
      {"block_int4", {EncodeLevelBlocks<4, 128>, DecodeLevelBlocks<4, 128>}},
      {"one_bit", {EncodeOneBit, DecodeOneBit}},
      {"top_k", {EncodeTopK, DecodeTopK}},
  };
  const auto found = references->find(name);
  if (found != references->end()) return found->second;
  return absl::NotFoundError(absl::StrCat("codec ", name, " has no reference in reference.cc"));
}

}  // namespace

absl::StatusOr<Bytes> ReferenceEncode(const std::string& name, const CodecOptions& options,
                                      const std::byte* source, uint64_t count, DType dtype) {
  const absl::StatusOr<Reference> reference = Find(name);
  if (!reference.ok()) return reference.status();
  return reference->encode({options, dtype}, FloatsOfElements(source, count, dtype));
}

absl::StatusOr<Bytes> ReferenceDecode(const std::string& name, const CodecOptions& options,
                                      const Bytes& encoded, uint64_t count, DType dtype) {
  const absl::StatusOr<Reference> reference = Find(name);
  if (!reference.ok()) return reference.status();
  return ElementsOfFloats(reference->decode({options, dtype}, encoded, count), dtype);
}

Floats FloatsOfElements(const std::byte* elements, uint64_t count, DType dtype) {
  Floats floats(count);
  for (size_t i = 0; i < count; ++i) floats[i] = Element(elements + i * SizeOf(dtype), dtype);
  return floats;
}

Bytes ElementsOfFloats(const Floats& floats, DType dtype) {
  Bytes elements(floats.size() * SizeOf(dtype));
  for (size_t i = 0; i < floats.size(); ++i) {
    PutElement(elements, i * SizeOf(dtype), floats[i], dtype);
  }
  return elements;
}

}  // namespace pelton::codec
