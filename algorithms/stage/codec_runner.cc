#include "algorithms/stage/codec_runner.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "algorithms/codec/error_feedback.h"
#include "algorithms/stage/piece_codec.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace pelton {

void ForEachGap(const Plan& plan, const BucketLayout& layout,
                absl::FunctionRef<void(uint64_t, uint64_t)> f) {
  const uint64_t element_bytes = SizeOf(layout.dtype);
  plan.ForEachFlatSlot(layout, [&](SlotId id, uint64_t begin, uint64_t end) {
    const uint64_t gap_begin = begin * element_bytes + plan.slot(id).size_bytes;
    const uint64_t gap_end = std::min(end, layout.content_count) * element_bytes;
    if (gap_begin < gap_end) f(gap_begin, gap_end - gap_begin);
  });
}

void ZeroGaps(const Plan& plan, const BucketLayout& layout, std::byte* flat) {
  ForEachGap(plan, layout, [flat](uint64_t begin_bytes, uint64_t size_bytes) {
    std::memset(flat + begin_bytes, 0, size_bytes);
  });
}

namespace {

// Threads: as CodecRunner. Owns: as CodecRunner.
class HostCodecRunner final : public CodecRunner {
 public:
  HostCodecRunner(const CompressedExchangeOptions& options, DType dtype)
      : codec_(options.codec, dtype),
        sum_(dtype, PieceCodec::kPieceCount),
        divisor_(options.divisor),
        residual_bytes_(SizeOf(FeedbackDType(dtype))) {}

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

// Threads: as CodecRunner. Owns: a share of the codec.
class DeviceCodecRunner final : public CodecRunner {
 public:
  DeviceCodecRunner(const CompressedExchangeOptions& options, DType dtype,
                    const ExchangeKernels& kernels)
      : codec_(options.codec), dtype_(dtype), divisor_(options.divisor), kernels_(kernels) {}

  absl::Status ZeroGaps(BucketRun& run) override {
    absl::Status status;
    ForEachGap(run.plan(), run.layout(), [&](uint64_t begin_bytes, uint64_t size_bytes) {
      status.Update(run.device()->Fill(run.flat() + begin_bytes, 0, size_bytes));
    });
    return status;
  }

  absl::Status Encode(BucketRun& run, const std::byte* source, uint64_t count, std::byte* residual,
                      EncodedPart message) override {
    PELTON_CHECK(residual == nullptr) << "error feedback on a device";
    RETURN_IF_ERROR(run.device()->Enqueue([&](Stream& stream) {
      return kernels_.Encode(source, {count, dtype_}, message.data, stream);
    }));
    return ZeroRest(run, count, message);
  }

  absl::Status Merge(BucketRun& run, const RankMessages& versions, uint64_t count,
                     std::byte* residual, EncodedPart message) override {
    PELTON_CHECK(residual == nullptr) << "error feedback on a device";
    RETURN_IF_ERROR(run.device()->Enqueue([&](Stream& stream) {
      return kernels_.Merge(versions, {count, dtype_}, divisor_, message.data, stream);
    }));
    return ZeroRest(run, count, message);
  }

  absl::Status Decode(BucketRun& run, const std::byte* encoded, uint64_t count,
                      std::byte* target) override {
    return run.device()->Enqueue([&](Stream& stream) {
      return kernels_.Decode(encoded, {count, dtype_}, target, stream);
    });
  }

 private:
  absl::Status ZeroRest(BucketRun& run, uint64_t count, EncodedPart message) const {
    const uint64_t used = PieceCodec::EncodedBytes(*codec_, dtype_, count);
    if (used == message.size_bytes) return absl::OkStatus();
    return run.device()->Fill(message.data + used, 0, message.size_bytes - used);
  }

  const std::shared_ptr<const Codec> codec_;
  const DType dtype_;
  const uint64_t divisor_;
  const ExchangeKernels& kernels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CodecRunner>> MakeCodecRunner(
    const CompressedExchangeOptions& options, DType dtype) {
  if (options.device == nullptr) return std::make_unique<HostCodecRunner>(options, dtype);
  const DeviceKind device = options.device->stream().device();
  const ExchangeKernels* const kernels = options.codec->KernelsOf(device);
  if (kernels == nullptr || options.error_feedback) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec: it does not work on ", NameOf(device), " memory",
                     kernels == nullptr ? "" : " with error feedback"));
  }
  return std::make_unique<DeviceCodecRunner>(options, dtype, *kernels);
}

}  // namespace pelton
