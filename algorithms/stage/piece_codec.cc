#include "algorithms/stage/piece_codec.h"

#include <utility>

#include "algorithms/codec/convert.h"
#include "algorithms/codec/error_feedback.h"
#include "comm/reduction/reduction.h"
#include "core/base/check.h"

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

namespace {

DType SumDType(DType dtype) { return SizeOf(dtype) == 2 ? DType::kFloat32 : dtype; }

}  // namespace

PieceSum::PieceSum(DType dtype, uint64_t largest_count)
    : dtype_(dtype),
      sum_dtype_(SumDType(dtype)),
      sum_(largest_count * SizeOf(sum_dtype_)),
      version_(largest_count * SizeOf(dtype)) {
  if (is_narrow()) wide_.resize(sum_.size());
}

void PieceSum::Begin(uint64_t count) {
  PELTON_CHECK(count * SizeOf(dtype_) <= version_.size()) << count;
  count_ = count;
  is_first_ = true;
}

std::byte* PieceSum::next() { return is_first_ && !is_narrow() ? sum_.data() : version_.data(); }

void PieceSum::Add() {
  const bool is_first = is_first_;
  is_first_ = false;
  if (is_narrow()) {
    std::byte* const wide = is_first ? sum_.data() : wide_.data();
    codec::FloatsFrom(version_.data(), count_, dtype_, reinterpret_cast<float*>(wide));
  }
  if (is_first) return;
  std::byte* const sum = sum_.data();
  const std::byte* const terms[] = {sum, is_narrow() ? wide_.data() : version_.data()};
  Reduce(terms, {&sum, 1}, count_, sum_dtype_, ReduceOp::kSum);
}

const std::byte* PieceSum::FinishWide(uint64_t divisor) {
  std::byte* const sum = sum_.data();
  if (divisor != 1) {
    const std::byte* const terms[] = {sum};
    ReduceToMean(terms, {&sum, 1}, count_, sum_dtype_, divisor);
  }
  return sum;
}

const std::byte* PieceSum::Finish(uint64_t divisor) {
  const std::byte* const sum = FinishWide(divisor);
  if (!is_narrow()) return sum;
  codec::FloatsTo(reinterpret_cast<const float*>(sum), count_, dtype_, version_.data());
  return version_.data();
}

}  // namespace pelton
