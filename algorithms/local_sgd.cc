// LocalSGD: every rank takes `interval` optimizer steps by itself; then all of them continue from
// the mean of their weights. Post-local SGD is the same after a phase of gradient allreduce: a
// switch of algorithms at a step of the user's choice. In its authors' code that phase is a mean of
// the weights after each step, which for SGD gives the same weights.
//
//   x_i = (x_0 + x_1 + ... + x_{n-1}) / n     after each `interval` steps
//
// Steps: one allreduce per bucket and interval. Bytes: for a bucket of B bytes those of the
// communicator's allreduce of B bytes, each `interval` steps.
// Result: bitwise the AVG allreduce, and equal on all ranks (SUM-1a).
// Source: Stich, Local SGD Converges Fast and Communicates Little, arXiv 1805.09767, algorithm 1;
// Lin et al., Don't Use Large Mini-Batches, Use Local SGD, arXiv 1808.07217 (post-local SGD).
#include "algorithms/algorithm.h"
#include "core/base/status.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// Threads: as Algorithm. Owns: its options.
class LocalSgd final : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("interval", &interval_, 1, "steps from one mean to the next");
  }
  std::string BytesSent() const override { return "those of an allreduce of B bytes"; }

  Schedule schedule() const override {
    return {.subject = Subject::kWeightsAfterStep, .first_step = interval_, .interval = interval_};
  }
  PlanConstraints Constraints() const override {
    PlanConstraints constraints;
    constraints.allows_standalone = false;
    return constraints;
  }
  bool Takes(const TensorSpec& tensor) const override { return IsFloatingPoint(tensor.dtype); }
  std::optional<ReduceOp> EqualsReduction(DType) const override { return ReduceOp::kAvg; }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout&, const Tiers&) override {
    PipelineSpec spec;
    spec.stages.push_back(MakeAllReduceStage(ReduceOp::kAvg));
    spec.allows_standalone = false;
    return spec;
  }

 private:
  uint64_t interval_ = 8;
};

REGISTER_ALGORITHM(local_sgd, "mean of all ranks' weights each few steps", LocalSgd);

}  // namespace
}  // namespace pelton
