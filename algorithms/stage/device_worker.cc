#include "algorithms/stage/exchange_worker.h"
#include "algorithms/stage/gaps.h"
#include "algorithms/stage/piece_codec.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Threads: as ExchangeWorker. Owns: a share of the codec.
class DeviceWorker final : public ExchangeWorker {
 public:
  DeviceWorker(const ExchangeWorkerOptions& options, const ExchangeKernels& kernels)
      : codec_(options.codec),
        dtype_(options.dtype),
        divisor_(options.divisor),
        kernels_(kernels) {}

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

std::unique_ptr<ExchangeWorker> MakeDeviceWorker(const ExchangeWorkerOptions& options,
                                                 const ExchangeKernels& kernels) {
  return std::make_unique<DeviceWorker>(options, kernels);
}

}  // namespace pelton
