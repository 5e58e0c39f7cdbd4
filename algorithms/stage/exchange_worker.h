// What a compressed exchange computes between its operations, in the host's memory or a device's.
#ifndef PELTON_ALGORITHMS_STAGE_EXCHANGE_WORKER_H_
#define PELTON_ALGORITHMS_STAGE_EXCHANGE_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "algorithms/codec/codec.h"
#include "algorithms/codec/exchange_kernels.h"
#include "core/memory/dtype.h"
#include "core/pipeline/stage.h"

namespace pelton {

// A message's encoded part. Threads: a value. Owns: nothing.
struct EncodedPart {
  std::byte* data;  // at a multiple of 32
  uint64_t size_bytes;
};

// Pieces are PieceCodec's. On a device everything is enqueued and its errors come late.
// Threads: its stage's. Owns: a share of the codec, and buffers of a piece.
class ExchangeWorker {
 public:
  virtual ~ExchangeWorker() = default;

  // See gaps.h.
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

// Threads: a value. Owns: a share of the codec.
struct ExchangeWorkerOptions {
  std::shared_ptr<const Codec> codec;
  DType dtype = DType::kFloat32;
  uint64_t divisor = 1;  // of the sum
};

// In the host's memory.
std::unique_ptr<ExchangeWorker> MakeHostWorker(const ExchangeWorkerOptions& options);
// In a device's, without error feedback. `kernels` are the codec's there.
std::unique_ptr<ExchangeWorker> MakeDeviceWorker(const ExchangeWorkerOptions& options,
                                                 const ExchangeKernels& kernels);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_EXCHANGE_WORKER_H_
