#include <cstring>

#include "algorithms/codec/error_feedback.h"
#include "algorithms/stage/exchange_worker.h"
#include "algorithms/stage/gaps.h"
#include "algorithms/stage/piece_codec.h"

namespace pelton {
namespace {

// Threads: as ExchangeWorker. Owns: as ExchangeWorker.
class HostWorker final : public ExchangeWorker {
 public:
  explicit HostWorker(const ExchangeWorkerOptions& options)
      : codec_(options.codec, options.dtype),
        sum_(options.dtype, PieceCodec::kPieceCount),
        divisor_(options.divisor),
        residual_bytes_(SizeOf(FeedbackDType(options.dtype))) {}

  absl::Status ZeroGaps(BucketRun& run) override {
    pelton::ZeroGaps(run.plan(), run.layout(), run.flat());
    return absl::OkStatus();
  }

  absl::Status Encode(BucketRun&, const std::byte* source, uint64_t count, std::byte* residual,
                      EncodedPart message) override {
    codec_.Encode(source, count, residual, message.data);
    ZeroRest(count, message);
    return absl::OkStatus();
  }

  // Piece by piece: the versions, their sum and its message are in the cache together.
  absl::Status Merge(BucketRun&, const RankMessages& versions, uint64_t count, std::byte* residual,
                     EncodedPart message) override {
    codec_.ForEachPiece(count, [&](uint64_t begin, uint64_t piece_count, uint64_t encoded_begin) {
      sum_.Begin(piece_count);
      for (int32_t rank = 0; rank < versions.count; ++rank) {
        codec_.Decode(versions.of(rank) + encoded_begin, piece_count, sum_.next());
        sum_.Add();
      }
      EncodeSum(piece_count, residual == nullptr ? nullptr : residual + begin * residual_bytes_,
                message.data + encoded_begin);
    });
    ZeroRest(count, message);
    return absl::OkStatus();
  }

  absl::Status Decode(BucketRun&, const std::byte* encoded, uint64_t count,
                      std::byte* target) override {
    codec_.Decode(encoded, count, target);
    return absl::OkStatus();
  }

 private:
  // What 16 bits would round off the mean is sent later, too.
  void EncodeSum(uint64_t count, std::byte* residual, std::byte* encoded) {
    if (residual == nullptr || !sum_.is_narrow()) {
      return codec_.Encode(sum_.Finish(divisor_), count, residual, encoded);
    }
    const auto* const mean = reinterpret_cast<const float*>(sum_.FinishWide(divisor_));
    codec_.EncodeWide(mean, count, residual, encoded);
  }

  void ZeroRest(uint64_t count, EncodedPart message) const {
    const uint64_t used = codec_.EncodedBytes(count);
    std::memset(message.data + used, 0, message.size_bytes - used);
  }

  PieceCodec codec_;
  PieceSum sum_;
  const uint64_t divisor_;
  const uint64_t residual_bytes_;  // of an element
};

}  // namespace

std::unique_ptr<ExchangeWorker> MakeHostWorker(const ExchangeWorkerOptions& options) {
  return std::make_unique<HostWorker>(options);
}

}  // namespace pelton
