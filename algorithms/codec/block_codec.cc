#include "algorithms/codec/block_codec.h"

#include <algorithm>
#include <bit>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "algorithms/codec/convert.h"
#include "algorithms/codec/keep_rest.h"
#include "algorithms/codec/layout.h"
#include "comm/reduction/reduction.h"

namespace pelton::codec {

absl::Status BlockCodec::Configure(const CodecOptions& options) {
  for (const auto& [option, value] : options) {
    if (option != "block") return UnknownCodecOption(option, "block");
    uint64_t block;
    if (!absl::SimpleAtoi(value, &block) || !std::has_single_bit(block) || block < 32 ||
        block > kBlockCount) {
      return absl::InvalidArgumentError(absl::StrCat(
          "option block is '", value, "', not a power of two from 32 to ", kBlockCount));
    }
    format_.block = block;
  }
  return absl::OkStatus();
}

bool BlockCodec::Takes(DType dtype) const { return IsConvertible(dtype); }

uint64_t BlockCodec::ScaleBytes(uint64_t count) const {
  return (count + format_.block - 1) / format_.block * sizeof(float);
}

uint64_t BlockCodec::EncodedBytes(uint64_t count, DType) const {
  return RoundedUpToPart(ScaleBytes(count)) + RoundedUpToPart(PayloadBytes(count));
}

void BlockCodec::Encode(const std::byte* source, uint64_t count, DType dtype,
                        std::byte* encoded) const {
  std::byte* const payload = encoded + RoundedUpToPart(ScaleBytes(count));
  auto* const scales = reinterpret_cast<float*>(encoded);
  auto* const bytes = reinterpret_cast<uint8_t*>(payload);
  ForEachSourceBlock(source, count, dtype, Order::kForward,
                     [&](const float* elements, uint64_t begin, size_t length) {
                       format_.encode(elements, {length, format_.block},
                                      scales + begin / format_.block,
                                      bytes + begin * format_.bits / 8);
                     });
  ZeroRestOfPart(encoded, ScaleBytes(count));
  ZeroRestOfPart(payload, PayloadBytes(count));
}

void BlockCodec::Decode(const std::byte* encoded, uint64_t count, DType dtype,
                        std::byte* target) const {
  const std::byte* const payload = encoded + RoundedUpToPart(ScaleBytes(count));
  const auto* const scales = reinterpret_cast<const float*>(encoded);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(payload);
  ForEachTargetBlock(target, count, dtype, [&](float* elements, uint64_t begin, size_t length) {
    format_.decode(scales + begin / format_.block, bytes + begin * format_.bits / 8,
                   {length, format_.block}, elements);
  });
}

// Chunk by chunk, so that only the tensors themselves pass through memory.
bool BlockCodec::EncodeSum(const FeedbackTensors& tensors, std::byte* encoded) const {
  const auto& [source, residual, decoded, count, dtype] = tensors;
  const uint64_t element_bytes = SizeOf(dtype);
  std::byte* const payload = encoded + RoundedUpToPart(ScaleBytes(count));
  for (uint64_t begin = 0; begin < count; begin += kBlockCount) {
    const auto length = static_cast<size_t>(std::min<uint64_t>(kBlockCount, count - begin));
    const uint64_t at = begin * element_bytes;
    auto* const scales = reinterpret_cast<float*>(encoded) + begin / format_.block;
    auto* const bytes = reinterpret_cast<uint8_t*>(payload) + begin * format_.bits / 8;
    std::byte* const sum = residual + at;
    const std::byte* const terms[] = {source + at, sum};
    Reduce(terms, {&sum, 1}, length, dtype, ReduceOp::kSum);
    ForEachSourceBlock(sum, length, dtype, Order::kForward,
                       [&](const float* elements, uint64_t, size_t) {
                         format_.encode(elements, {length, format_.block}, scales, bytes);
                       });
    ForEachTargetBlock(decoded + at, length, dtype, [&](float* elements, uint64_t, size_t) {
      format_.decode(scales, bytes, {length, format_.block}, elements);
    });
    KeepRest(decoded + at, length, dtype, sum);
  }
  ZeroRestOfPart(encoded, ScaleBytes(count));
  ZeroRestOfPart(payload, PayloadBytes(count));
  return true;
}

}  // namespace pelton::codec
