// DiLoCo: every rank takes `interval` steps of its inner optimizer by itself; then an outer
// optimizer, Nesterov SGD, takes one step whose gradient is how far the ranks have come on average,
// and all continue from there. Streaming DiLoCo shares the buckets out into fragments, of which one
// is exchanged each interval / fragments steps, `delay` steps ahead of its use.
//
// State per bucket: the anchor a, the outer weights as of their last step, which begin as the
// initial model, and the momentum v, which begins at zero. With x_i rank i's weights:
//   g = (sum over i of (a - x_i)) / n;  v = m v + g;  a = a - r (g + m v)
// with r the outer learning rate and m the outer momentum; then x_i = mix x_i + (1 - mix) a.
//
// Fragment p of P holds the buckets k with k mod P = p, and is exchanged in the rounds 1 + p,
// 1 + p + P and so on; rounds are interval / P steps apart. A bucket that is not of the round's
// fragment keeps what its rank has written there: the caller leaves its weights alone
// (ModelRounds::Communicates).
//
// Steps: one allreduce per bucket of the fragment. Bytes: for a bucket of B bytes those of the
// communicator's allreduce of B bytes, each `interval` steps.
// Result: the anchors are bitwise equal on all ranks (SUM-1a).
// Source: Douillard et al., DiLoCo, arXiv 2311.08105, algorithm 1, with the outer optimizer of its
// section 3.1: Nesterov SGD, in PyTorch's form, with the learning rate and momentum that are the
// defaults here. Douillard et al., Streaming DiLoCo, arXiv 2501.18512, algorithm 2, whose H is
// `interval`, whose alpha is `mix` and whose tau is `delay`; t_p is (1 + p) interval / P. Its
// theta^(t-H), the fragment as synchronized last, is the anchor in lines 7 and 11. Unlike there, a
// fragment's first round does not wait for a whole interval, fragments are of buckets, not of
// transformer blocks, and travel in full precision, not in the 4 bits of its section 2.4.
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/stage/linear_combination.h"
#include "core/base/status.h"
#include "core/pipeline/flat_state.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/operation_batch.h"

namespace pelton {
namespace {

constexpr NumberRange kAnyRate = {0, 1e6};
constexpr NumberRange kFraction = {0, 1};

struct OuterOptimizer {
  double learning_rate = 0.7;
  double momentum = 0.9;
};

// Exchange: the bucket, a rank's weights, becomes the anchor after the outer step.
// Threads: as Stage. Owns: the operations of the round.
class OuterStepStage final : public Stage {
 public:
  explicit OuterStepStage(OuterOptimizer optimizer) : optimizer_(optimizer) {}
  absl::string_view name() const override { return "outer step"; }
  StageKind kind() const override { return StageKind::kExchange; }

  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    auto state = std::make_unique<FlatState>();
    state->Add("anchor", layout.dtype, 0, layout.flat_count);
    state->Add("momentum", MomentumTypeOf(layout.dtype), 0, layout.flat_count);
    return state;
  }

  void Prime(const BucketLayout& layout, const std::byte* flat, StageState& state) const override {
    if (layout.flat_count == 0) return;
    std::memcpy(AnchorOf(state), flat, layout.flat_count * SizeOf(layout.dtype));
  }

  absl::Status Start(BucketRun& run, StageState* state) override {
    const DType dtype = run.layout().dtype;
    batch_.Clear();
    if (run.layout().flat_count == 0) return absl::OkStatus();
    const Term terms[] = {{AnchorOf(*state), 1, dtype}, {run.flat(), -1, dtype}};
    LinearCombination(terms, {run.flat(), dtype}, run.layout().flat_count);
    const Segment flat = run.segments().front();
    Operation operation;
    operation.kind = OperationKind::kAllReduce;
    operation.dtype = dtype;
    operation.reduce_op = ReduceOp::kAvg;
    operation.count = flat.count;
    operation.set_source(flat.location);
    operation.set_target(flat.location);
    batch_.Add(operation);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) override {
    ASSIGN_OR_RETURN(const bool done, batch_.Advance(run));
    if (done && run.layout().flat_count > 0) Step(run, *state);
    return done;
  }

 private:
  // Small gradients would be lost in a momentum of 16 bits.
  static DType MomentumTypeOf(DType dtype) {
    return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  }
  static std::byte* AnchorOf(const StageState& state) { return state.buffers()[0].data; }
  static std::byte* MomentumOf(const StageState& state) { return state.buffers()[1].data; }

  void Step(const BucketRun& run, const StageState& state) const {
    const DType dtype = run.layout().dtype;
    const uint64_t count = run.layout().flat_count;
    const CombinationTarget momentum = {MomentumOf(state), MomentumTypeOf(dtype)};
    const Term gradient = {run.flat(), 1, dtype};
    const Term moved[] = {{momentum.data, optimizer_.momentum, momentum.dtype}, gradient};
    LinearCombination(moved, momentum, count);
    const double rate = optimizer_.learning_rate;
    const Term stepped[] = {{AnchorOf(state), 1, dtype},
                            {gradient.data, -rate, dtype},
                            {momentum.data, -rate * optimizer_.momentum, momentum.dtype}};
    LinearCombination(stepped, {AnchorOf(state), dtype}, count);
    std::memcpy(run.flat(), AnchorOf(state), count * SizeOf(dtype));
  }

  const OuterOptimizer optimizer_;
  OperationBatch batch_;
};

// Threads: as Algorithm. Owns: its options.
class DiLoCo final : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("interval", &interval_, 1, "inner steps between two outer steps of a bucket");
    table.Count("fragments", &fragments_, 1,
                "parts of the model that take turns; divides the interval");
    table.Count("delay", &delay_, 0, "steps that an exchange may take; below interval / fragments");
    table.Number("outer_learning_rate", &optimizer_.learning_rate, kAnyRate,
                 "of the outer Nesterov step");
    table.Number("outer_momentum", &optimizer_.momentum, kFraction, "of the outer Nesterov step");
    table.NumberOrAuto("mix", &mix_, kFraction,
                       "how much of a rank's own weights stays; auto: 0, but 0.5 with a delay");
  }
  absl::Status CheckOptions() override {
    if (interval_ % fragments_ != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "option fragments is ", fragments_, ", which does not divide the interval, ", interval_));
    }
    if (delay_ < interval_ / fragments_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "option delay is ", delay_, ", not below interval / fragments, ", interval_ / fragments_));
  }
  std::string BytesSent() const override {
    return "those of an allreduce of B bytes, for the buckets of the round's fragment";
  }

  Schedule schedule() const override {
    const double mix = mix_.value_or(delay_ > 0 ? 0.5 : 0);
    return {.subject = Subject::kWeightsAfterStep,
            .first_step = interval_ / fragments_,
            .interval = interval_ / fragments_,
            .delay = delay_,
            .kept = mix,
            .taken = 1 - mix};
  }
  PlanConstraints Constraints() const override {
    PlanConstraints constraints;
    constraints.allows_standalone = false;
    return constraints;
  }
  bool Takes(const TensorSpec& tensor) const override {
    return IsFloatingPoint(tensor.dtype) && !IsComplex(tensor.dtype);
  }
  // Buckets that are not of the round's fragment hold what each rank has put there.
  bool RanksAgree() const override { return fragments_ == 1; }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers&) override {
    PipelineSpec spec;
    spec.stages.push_back(std::make_unique<OuterStepStage>(optimizer_));
    spec.period = fragments_;
    spec.phase = static_cast<uint64_t>(layout.id.value()) % fragments_;
    spec.allows_standalone = false;
    return spec;
  }

 private:
  uint64_t interval_ = 100;
  uint64_t fragments_ = 1;
  uint64_t delay_ = 0;
  std::optional<double> mix_;
  OuterOptimizer optimizer_;
};

REGISTER_ALGORITHM(diloco, "an outer Nesterov step on the mean progress of all ranks, in fragments",
                   DiLoCo);

}  // namespace
}  // namespace pelton
