// What a compressed exchange computes between its operations, in the host's memory or a device's.
#ifndef PELTON_ALGORITHMS_STAGE_CODEC_RUNNER_H_
#define PELTON_ALGORITHMS_STAGE_CODEC_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "algorithms/codec/codec.h"
#include "core/memory/device_queue.h"
#include "core/memory/dtype.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"

namespace pelton {

// Zeros between the slots: what a lossy exchange leaves there must not count in the next.
void ZeroGaps(const Plan& plan, const BucketLayout& layout, std::byte* flat);
// Calls f(begin_bytes, size_bytes) for each gap.
void ForEachGap(const Plan& plan, const BucketLayout& layout,
                absl::FunctionRef<void(uint64_t, uint64_t)> f);

// A message's encoded part. Threads: a value. Owns: nothing.
struct EncodedPart {
  std::byte* data;  // at a multiple of 32
  uint64_t size_bytes;
};

// Pieces are PieceCodec's. On a device everything is enqueued and its errors come late.
// Threads: its stage's. Owns: a share of the codec, and buffers of a piece.
class CodecRunner {
 public:
  virtual ~CodecRunner() = default;

  // As the function of that name.
  virtual absl::Status ZeroGaps(BucketRun& run) = 0;
  // What the pieces leave of `message` becomes zeros. Shape: source [count], residual [count] of
  // FeedbackDType or null: no error feedback.
  virtual absl::Status Encode(BucketRun& run, const std::byte* source, uint64_t count,
                              std::byte* residual, EncodedPart message) = 0;
  // The sum of the versions in rank order, divided, into `message`; as Encode. Shape: each version
  // holds `count` elements.
  virtual absl::Status Merge(BucketRun& run, const RankMessages& versions, uint64_t count,
                             std::byte* residual, EncodedPart message) = 0;
  virtual absl::Status Decode(BucketRun& run, const std::byte* encoded, uint64_t count,
                              std::byte* target) = 0;
};

// Threads: a value. Owns: a share of the codec, which the stages of all buckets use.
struct CompressedExchangeOptions {
  std::shared_ptr<const Codec> codec;
  bool error_feedback = false;
  uint64_t divisor = 1;           // of the sum
  DeviceQueue* device = nullptr;  // where the bucket is; null: in the host's memory
};

// For a bucket of `dtype`. Errors: InvalidArgument: the codec, or its error feedback, does not work
// on the device.
absl::StatusOr<std::unique_ptr<CodecRunner>> MakeCodecRunner(
    const CompressedExchangeOptions& options, DType dtype);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_CODEC_RUNNER_H_
