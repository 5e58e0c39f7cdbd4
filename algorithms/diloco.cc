// DiLoCo: every rank takes `interval` steps of its inner optimizer by itself; then an outer
// optimizer, Nesterov SGD, takes one step whose gradient is how far the ranks have come on average,
// and all continue from there. Streaming DiLoCo shares the buckets out into fragments, of which one
// is exchanged each interval / fragments steps, `delay` steps ahead of its use.
//
// The step, its state and its formulas: algorithms/stage/outer_step.h, with a the outer weights as
// of their last step. With x_i rank i's weights, then x_i = mix x_i + (1 - mix) a.
//
// Fragment p of P holds the buckets k with k mod P = p, and is exchanged in the rounds 1 + p,
// 1 + p + P and so on; rounds are interval / P steps apart. A bucket that is not of the round's
// fragment keeps what its rank has written there: the caller leaves its weights alone
// (ModelRounds::Communicates).
//
// Steps: one allreduce per bucket of the fragment, with a codec a compressed one. Bytes: for a
// bucket of B bytes those of the communicator's allreduce of B bytes, each `interval` steps; with a
// codec those of algorithms/stage/compressed_algorithm.h.
// Result: the anchors are bitwise equal on all ranks (SUM-1a).
// Source: Douillard et al., DiLoCo, arXiv 2311.08105, algorithm 1, with the outer optimizer of its
// section 3.1: Nesterov SGD, in PyTorch's form, with the learning rate and momentum that are the
// defaults here. Douillard et al., Streaming DiLoCo, arXiv 2501.18512, algorithm 2, whose H is
// `interval`, whose alpha is `mix` and whose tau is `delay`; t_p is (1 + p) interval / P. Its
// theta^(t-H), the fragment as synchronized last, is the anchor in lines 7 and 11. Unlike there, a
// fragment's first round does not wait for a whole interval, fragments are of buckets, not of
// transformer blocks, and the codec block_int4 stands for the 4-bit floats of its section 2.4.
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/stage/compressed_algorithm.h"
#include "algorithms/stage/outer_step.h"
#include "comm/reduction/combinable.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Threads: as Algorithm. Owns: its options.
class DiLoCo final : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("interval", &interval_, 1, "inner steps between two outer steps of a bucket");
    table.Count("fragments", &fragments_, 1,
                "parts of the model that take turns; divides the interval");
    table.Count("delay", &delay_, 0, "steps that an exchange may take; below interval / fragments");
    table.Number("outer_learning_rate", &outer_.learning_rate, kAnyRate,
                 "of the outer Nesterov step");
    table.Number("outer_momentum", &outer_.momentum, kFraction, "of the outer Nesterov step");
    table.NumberOrAuto("mix", &mix_, kFraction,
                       "how much of a rank's own weights stays; auto: 0, but 0.5 with a delay");
    table.Bool("hierarchical", &hierarchical_,
               "with a codec, true: only the hosts' leaders exchange messages");
    compression_.Bind(table);
  }
  absl::Status CheckOptions() override {
    RETURN_IF_ERROR(compression_.Finish());
    if (interval_ % fragments_ != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "option fragments is ", fragments_, ", which does not divide the interval, ", interval_));
    }
    if (delay_ < interval_ / fragments_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "option delay is ", delay_, ", not below interval / fragments, ", interval_ / fragments_));
  }
  std::string BytesSent() const override {
    return "those of an allreduce of B bytes, with a codec 2 (n - 1) / n times the encoded bucket, "
           "for the buckets of the round's fragment";
  }

  Schedule schedule() const override {
    const double mix = mix_.value_or(delay_ > 0 ? 0.5 : 0);
    return {.source = Source::kWeights,
            .trigger = TriggerKind::kAfterStep,
            .first_step = interval_ / fragments_,
            .interval = interval_ / fragments_,
            .delay = delay_,
            .commit = {.kept = mix, .taken = 1 - mix}};
  }
  bool IsHierarchical() const override { return hierarchical_ && compression_.codec() != nullptr; }
  PlanConstraints Constraints() const override { return {.allows_standalone = false}; }
  bool Takes(const TensorSpec& tensor) const override {
    return IsCombinable(tensor.dtype) && compression_.Takes(tensor.dtype);
  }
  // Buckets that are not of the round's fragment hold what each rank has put there.
  bool RanksAgree() const override { return fragments_ == 1; }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    PipelineSpec spec;
    RETURN_IF_ERROR(AddOuterStep(outer_, compression_, layout, tiers, spec));
    spec.period = fragments_;
    spec.phase = static_cast<uint64_t>(layout.id.value()) % fragments_;
    return spec;
  }

 private:
  uint64_t interval_ = 100;
  uint64_t fragments_ = 1;
  uint64_t delay_ = 0;
  std::optional<double> mix_;
  OuterStepOptions outer_{.learning_rate = 0.7, .momentum = 0.9};
  bool hierarchical_ = true;
  CompressionOptions compression_;
};

REGISTER_ALGORITHM(diloco, "an outer Nesterov step on the mean progress of all ranks, in fragments",
                   DiLoCo);

}  // namespace
}  // namespace pelton
