// LocalSGD: every rank takes `interval` optimizer steps by itself; then all of them continue from
// the mean of their weights. Post-local SGD is the same after a phase of gradient allreduce: a
// switch of algorithms at a step of the user's choice. In its authors' code that phase is a mean of
// the weights after each step, which for SGD gives the same weights.
//
//   x_i = (x_0 + x_1 + ... + x_{n-1}) / n     after each `interval` steps
//
// With a codec the ranks exchange how far they have come since the last mean, encoded, and all
// continue from that mean plus the mean of what was decoded (algorithms/stage/outer_step.h).
//
// Steps: one allreduce per bucket and interval, with a codec a compressed one. Bytes: for a bucket
// of B bytes those of the communicator's allreduce of B bytes, each `interval` steps; with a codec
// those of algorithms/stage/compressed_algorithm.h.
// Result: equal on all ranks (SUM-1a); without a codec bitwise the AVG allreduce.
// Source: Stich, Local SGD Converges Fast and Communicates Little, arXiv 1805.09767, algorithm 1;
// Lin et al., Don't Use Large Mini-Batches, Use Local SGD, arXiv 1808.07217 (post-local SGD).
#include "algorithms/algorithm.h"
#include "algorithms/stage/compressed_algorithm.h"
#include "algorithms/stage/outer_step.h"
#include "core/base/status.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// Threads: as Algorithm. Owns: its options.
class LocalSgd final : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("interval", &interval_, 1, "steps from one mean to the next");
    table.Bool("hierarchical", &hierarchical_,
               "with a codec, true: only the hosts' leaders exchange messages");
    compression_.Bind(table);
  }
  absl::Status CheckOptions() override { return compression_.Finish(); }
  std::string BytesSent() const override {
    return "those of an allreduce of B bytes, with a codec 2 (n - 1) / n times the encoded bucket";
  }

  Schedule schedule() const override {
    return {.source = Source::kWeights,
            .trigger = TriggerKind::kAfterStep,
            .first_step = interval_,
            .interval = interval_};
  }
  bool IsHierarchical() const override { return hierarchical_ && encodes(); }
  PlanConstraints Constraints() const override { return {.allows_standalone = false}; }
  bool Takes(const TensorSpec& tensor) const override {
    return IsFloatingPoint(tensor.dtype) && compression_.Takes(tensor.dtype);
  }
  bool TakesDeviceMemory() const override { return !encodes(); }
  std::optional<ReduceOp> EqualsReduction(DType) const override {
    return encodes() ? std::nullopt : std::optional(ReduceOp::kAvg);
  }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    PipelineSpec spec;
    if (!encodes()) {
      spec.stages.push_back(MakeAllReduceStage(ReduceOp::kAvg));
      return spec;
    }
    RETURN_IF_ERROR(AddOuterStep({}, compression_, layout, tiers, spec));
    return spec;
  }

 private:
  bool encodes() const { return compression_.codec() != nullptr; }

  uint64_t interval_ = 8;
  bool hierarchical_ = true;
  CompressionOptions compression_;
};

REGISTER_ALGORITHM(local_sgd, "mean of all ranks' weights each few steps", LocalSgd);

}  // namespace
}  // namespace pelton
