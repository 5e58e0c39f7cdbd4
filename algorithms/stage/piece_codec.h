// A codec in steps that stay in the cache.
#ifndef PELTON_ALGORITHMS_STAGE_PIECE_CODEC_H_
#define PELTON_ALGORITHMS_STAGE_PIECE_CODEC_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "algorithms/codec/codec.h"
#include "core/memory/dtype.h"

namespace pelton {

// Encodes a tensor as pieces of kPieceCount elements, the last one being shorter, each a message of
// the codec's own: a piece is still in the second-level cache when the codec's second pass, or the
// next step of the caller, reads it, and an outlier spoils the scale of its piece alone.
// Threads: one at a time. Owns: a buffer of one piece, and a share of the codec.
class PieceCodec {
 public:
  static constexpr uint64_t kPieceCount = 16384;

  // The codec is shared by the stages of all buckets, which may outlive the algorithm. Requires:
  // codec->Takes(dtype).
  PieceCodec(std::shared_ptr<const Codec> codec, DType dtype);

  // Size of `count` encoded elements of `dtype`; a multiple of 32. Units: bytes.
  static uint64_t EncodedBytes(const Codec& codec, DType dtype, uint64_t count);
  uint64_t EncodedBytes(uint64_t count) const { return EncodedBytes(*codec_, dtype_, count); }

  // With a residual, error feedback: see codec/error_feedback.h. Shape: source [count], residual
  // [count] of FeedbackDType(dtype) or null, encoded [EncodedBytes(count)] at a multiple of 32.
  void Encode(const std::byte* source, uint64_t count, std::byte* residual, std::byte* encoded);
  // The same of a tensor that has not been rounded to 16 bits. Requires: such a dtype; a residual.
  void EncodeWide(const float* source, uint64_t count, std::byte* residual, std::byte* encoded);
  // Shape: encoded [EncodedBytes(count)], target [count].
  void Decode(const std::byte* encoded, uint64_t count, std::byte* target) const;

  // Calls f(begin, count, encoded_begin) for each piece of `count` elements: where it begins in the
  // tensor, and at which byte of the encoded one.
  template <typename F>
  void ForEachPiece(uint64_t count, F f) const {
    uint64_t encoded_begin = 0;
    for (uint64_t begin = 0; begin < count; begin += kPieceCount) {
      f(begin, std::min(kPieceCount, count - begin), encoded_begin);
      encoded_begin += whole_piece_bytes_;
    }
  }

 private:
  std::shared_ptr<const Codec> codec_;
  DType dtype_;
  uint64_t whole_piece_bytes_;
  std::vector<std::byte> decoded_;
};

// The sum of several ranks' versions of one piece, in rank order.
// Adds versions in the order in which they come, with the arithmetic of comm/reduction/reference.h:
// float16 and bfloat16 in float32, rounded once, at the end. Memory for two versions, however many
// there are. For each version: write it to next(), then Add(); at last Finish().
// Threads: one at a time. Owns: its buffers.
class PieceSum {
 public:
  PieceSum(DType dtype, uint64_t largest_count);

  // A piece of `count` elements begins. Requires: at most `largest_count`.
  void Begin(uint64_t count);
  // Where the next version's elements are to be written. Shape: [count].
  std::byte* next();
  void Add();
  // The sum, divided by `divisor`; valid until the next Begin. Shape: [count].
  const std::byte* Finish(uint64_t divisor);
  // The same before it is rounded to 16 bits: of the type of the sum.
  const std::byte* FinishWide(uint64_t divisor);
  // Whether these are two types: the sum's is float32 then.
  bool is_narrow() const { return dtype_ != sum_dtype_; }

 private:
  const DType dtype_;
  const DType sum_dtype_;  // float32 for the types of 16 bits
  uint64_t count_ = 0;
  bool is_first_ = true;
  std::vector<std::byte> sum_;
  std::vector<std::byte> version_;  // in dtype_
  std::vector<std::byte> wide_;     // the version in sum_dtype_, if that is another one
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_PIECE_CODEC_H_
