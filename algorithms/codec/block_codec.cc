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
namespace {

// f(begin, length) for each kBlockCount of `count` elements, the last chunk being shorter.
template <typename F>
void ForEachChunk(uint64_t count, F f) {
  for (uint64_t begin = 0; begin < count; begin += kBlockCount) {
    f(begin, static_cast<size_t>(std::min<uint64_t>(kBlockCount, count - begin)));
  }
}

}  // namespace

void BlockCodec::BindOptions(OptionTable& table) {
  table.Add({"block", absl::StrCat(format_.block),
             absl::StrCat("a power of two from 32 to ", kBlockCount), "elements with one scale"},
            [this](absl::string_view text) {
              uint64_t block = 0;
              const bool is_one = absl::SimpleAtoi(text, &block) && std::has_single_bit(block) &&
                                  block >= 32 && block <= kBlockCount;
              if (is_one) format_.block = block;
              return is_one;
            });
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
  ForEachChunk(count, [&](uint64_t begin, size_t length) {
    format_.encode(source + begin * SizeOf(dtype), {length, format_.block, dtype},
                   reinterpret_cast<float*>(encoded) + begin / format_.block,
                   reinterpret_cast<uint8_t*>(payload) + begin * format_.bits / 8);
  });
  ZeroRestOfPart(encoded, ScaleBytes(count));
  ZeroRestOfPart(payload, PayloadBytes(count));
}

void BlockCodec::Decode(const std::byte* encoded, uint64_t count, DType dtype,
                        std::byte* target) const {
  const std::byte* const payload = encoded + RoundedUpToPart(ScaleBytes(count));
  ForEachChunk(count, [&](uint64_t begin, size_t length) {
    format_.decode(reinterpret_cast<const float*>(encoded) + begin / format_.block,
                   reinterpret_cast<const uint8_t*>(payload) + begin * format_.bits / 8,
                   {length, format_.block, dtype}, target + begin * SizeOf(dtype));
  });
}

// Chunk by chunk, so that only the tensors themselves pass through memory.
bool BlockCodec::EncodeSum(const FeedbackTensors& tensors, std::byte* encoded) const {
  const uint64_t count = tensors.count;
  std::byte* const payload = encoded + RoundedUpToPart(ScaleBytes(count));
  ForEachChunk(count, [&](uint64_t begin, size_t length) {
    const Blocks blocks = {length, format_.block, tensors.dtype};
    const uint64_t at = begin * SizeOf(tensors.dtype);
    auto* const scales = reinterpret_cast<float*>(encoded) + begin / format_.block;
    auto* const bytes = reinterpret_cast<uint8_t*>(payload) + begin * format_.bits / 8;
    std::byte* const sum = tensors.residual + at;
    const std::byte* const terms[] = {tensors.source + at, sum};
    Reduce(terms, {&sum, 1}, length, tensors.dtype, ReduceOp::kSum);
    format_.encode(sum, blocks, scales, bytes);
    format_.decode(scales, bytes, blocks, tensors.decoded + at);
    KeepRest(tensors.decoded + at, length, tensors.dtype, sum);
  });
  ZeroRestOfPart(encoded, ScaleBytes(count));
  ZeroRestOfPart(payload, PayloadBytes(count));
  return true;
}

}  // namespace pelton::codec
