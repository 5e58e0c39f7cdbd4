// An allreduce whose messages are encoded by a codec: what ByteGrad, QAdam and 1-bit Adam exchange.
//
// Steps, among n ranks, each rank being responsible for one chunk of the bucket's flat part: encode
// every chunk; all-to-all; decode the n versions of the own chunk, add them in rank order, divide;
// encode the result; allgather; decode all chunks, the own one too, so that all ranks end with the
// same bits. A chunk is encoded in pieces of 16384 elements (PieceCodec).
// Hierarchical: the leader gets the mean of its host's ranks in full precision, and weights it by
// the host's share of all ranks, so that the result is a mean over ranks however unequal the hosts
// are; the leaders exchange that, n being their number, and broadcast. With average=false hosts
// exchange sums. With one host, or one rank, nothing is encoded: an allreduce.
// Bytes that a rank (hierarchical: a leader, beside what its host moves inside) sends for a bucket:
// (n - 1) * 2 * E, where E is the size of an encoded chunk, the largest one.
// Source: Bagua (arXiv 2107.01499, section 3.2); with error feedback on both sides, 1-bit Adam
// (arXiv 2102.02888, algorithm 1).
#ifndef PELTON_ALGORITHMS_STAGE_COMPRESSED_ALGORITHM_H_
#define PELTON_ALGORITHMS_STAGE_COMPRESSED_ALGORITHM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "algorithms/algorithm.h"
#include "algorithms/codec/codec.h"
#include "comm/tiers.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"
#include "core/registry/option_table.h"

namespace pelton {

// Threads: a value. Owns: a share of the codec, which the stages of all buckets use.
struct CompressedAllReduceOptions {
  std::shared_ptr<const Codec> codec;
  bool average = true;  // else the sum
  // Whether what a message drops is added to the next one: where a rank encodes its own, beside the
  // whole flat part ("residual"), on the server's beside the own chunk ("server_residual"). A
  // tensor that nobody uses in a round leaves both as they are (Pipeline::PutBackUnused).
  bool error_feedback = false;
};

// The whole pipeline, over `tiers` where they are open, else over `tiers.all`. Errors:
// InvalidArgument: the codec does not take the bucket's dtype; those of Scratch::Create.
absl::StatusOr<PipelineSpec> CompressedAllReduce(const CompressedAllReduceOptions& options,
                                                 const BucketLayout& layout, const Tiers& tiers);

// The options that every algorithm with a codec has.
// Threads: one at a time. Owns: what was read.
class CompressionOptions {
 public:
  static constexpr absl::string_view kNone = "none";

  // For algorithms that encode only where they are asked to.
  CompressionOptions() : CompressionOptions(std::string(kNone)) {}
  // With `kNone` for a default, "none" is one of the values.
  explicit CompressionOptions(std::string default_codec)
      : may_be_none_(default_codec == kNone), codec_name_(std::move(default_codec)) {}

  // The options `codec`, those of the codec, and `error_feedback`.
  void Bind(OptionTable& table);
  // The same without `error_feedback`: of an algorithm that needs none.
  void BindCodec(OptionTable& table);
  // After they are read. Errors: InvalidArgument: the options of the codec, or options
  // without a codec.
  absl::Status Finish();

  // After Finish; shared with the stages, which may outlive the algorithm. Null for none.
  const std::shared_ptr<const Codec>& codec() const { return codec_; }
  bool error_feedback() const {
    return codec_ != nullptr && error_feedback_.value_or(codec_->NeedsErrorFeedback());
  }
  // Whether messages may be of `dtype`. After Finish.
  bool Takes(DType dtype) const { return codec_ == nullptr || codec_->Takes(dtype); }

 private:
  bool may_be_none_;
  std::string codec_name_;
  CodecOptions codec_options_;
  std::optional<bool> error_feedback_;  // nothing: auto
  std::shared_ptr<const Codec> codec_;
};

// Threads: as Algorithm. Owns: its options.
class CompressedAlgorithm : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override;
  absl::Status CheckOptions() override { return compression_.Finish(); }
  std::string BytesSent() const override;
  Schedule schedule() const override;
  bool IsHierarchical() const override { return hierarchical_; }
  PlanConstraints Constraints() const override;
  bool Takes(const TensorSpec& tensor) const override;
  bool TakesDeviceMemory() const override;
  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override;

 protected:
  // Threads: a value. Owns: its text.
  struct Variant {
    Source source;
    std::string default_codec;
    bool may_sum;  // whether there is an option `average`
  };
  explicit CompressedAlgorithm(const Variant& variant);

 private:
  const Variant variant_;
  bool average_ = true;
  bool hierarchical_ = true;
  CompressionOptions compression_;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_COMPRESSED_ALGORITHM_H_
