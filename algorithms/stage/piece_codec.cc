#include "algorithms/stage/piece_codec.h"

#include <utility>

#include "algorithms/codec/error_feedback.h"

namespace pelton {

PieceCodec::PieceCodec(std::shared_ptr<const Codec> codec, DType dtype)
    : codec_(std::move(codec)),
      dtype_(dtype),
      whole_piece_bytes_(codec_->EncodedBytes(kPieceCount, dtype)),
      decoded_(kPieceCount * SizeOf(dtype)) {}

uint64_t PieceCodec::EncodedBytes(const Codec& codec, DType dtype, uint64_t count) {
  const uint64_t whole = count / kPieceCount;
  const uint64_t rest = count % kPieceCount;
  return (whole == 0 ? 0 : whole * codec.EncodedBytes(kPieceCount, dtype)) +
         (rest == 0 ? 0 : codec.EncodedBytes(rest, dtype));
}

void PieceCodec::Encode(const std::byte* source, uint64_t count, std::byte* residual,
                        std::byte* encoded) {
  const uint64_t element_bytes = SizeOf(dtype_);
  ForEachPiece(count, [&](uint64_t begin, uint64_t piece_count, uint64_t encoded_begin) {
    const std::byte* const from = source + begin * element_bytes;
    std::byte* const to = encoded + encoded_begin;
    if (residual == nullptr) {
      codec_->Encode(from, piece_count, dtype_, to);
    } else {
      EncodeWithFeedback(*codec_, from, piece_count, dtype_,
                         residual + begin * SizeOf(FeedbackDType(dtype_)), to, decoded_.data());
    }
  });
}

void PieceCodec::EncodeWide(const float* source, uint64_t count, std::byte* residual,
                            std::byte* encoded) {
  ForEachPiece(count, [&](uint64_t begin, uint64_t piece_count, uint64_t encoded_begin) {
    EncodeWideWithFeedback(*codec_, source + begin, piece_count, dtype_,
                           residual + begin * sizeof(float), encoded + encoded_begin,
                           decoded_.data());
  });
}

void PieceCodec::Decode(const std::byte* encoded, uint64_t count, std::byte* target) const {
  const uint64_t element_bytes = SizeOf(dtype_);
  ForEachPiece(count, [&](uint64_t begin, uint64_t piece_count, uint64_t encoded_begin) {
    codec_->Decode(encoded + encoded_begin, piece_count, dtype_, target + begin * element_bytes);
  });
}

}  // namespace pelton
