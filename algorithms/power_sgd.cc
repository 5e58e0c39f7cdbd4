// PowerSGD: gradient allreduce in which each matrix M [rows, columns] travels as two thin factors.
// M = gradient + error; P = mean of M Q; P orthonormal; Q = mean of M^T P; the gradient becomes
// P Q^T, the error M - P Q^T; the next round starts from this Q.
//
// Steps: two allreduces of a bucket (AVG): first the left factors P with the tensors that are no
// matrices, or too small to gain; then the right factors Q.
// One, if the bucket has no matrix.
// Bytes: a bucket's messages have U + rank * (sum of rows + sum of columns) elements, of float64
// for float64 tensors and else of float32, U being the elements that travel as they are; each rank
// sends 2 * (n - 1) / n times that.
// Result: bitwise equal on all ranks. With one rank the gradient is left as it is.
// Source: Vogels et al., PowerSGD, arXiv 1905.13727, algorithm 1, and algorithm 2 but for its
// momentum, which is the optimizer's. The query is made unit vectors before use, which spans the
// same and keeps clear of underflow; one that has become zeros starts anew.
#include "algorithms/algorithm.h"
#include "algorithms/stage/power_sgd_stage.h"
#include "algorithms/stage/tier_stages.h"
#include "comm/reduction/combinable.h"
#include "core/base/status.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

constexpr NumberRange kCompressions = {1, 1e9};

// Threads: as Algorithm. Owns: its options.
class PowerSgd final : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("rank", &options_.rank, 1, "of the approximation");
    table.Number("min_compression", &options_.min_compression, kCompressions,
                 "a matrix is compressed where rank * (rows + columns) times this is below rows * "
                 "columns");
    table.Count("start_round", &options_.start_round, 1,
                "the rounds before it are allreduces in full precision");
    table.Refuse("codec", "factors of low rank are its codec; see the option rank");
  }
  std::string BytesSent() const override {
    return "2 (n - 1) / n times that of rank * (rows + columns) elements a matrix, and of what is "
           "not compressed";
  }

  PlanConstraints Constraints() const override { return {.allows_standalone = false}; }

  bool Takes(const TensorSpec& tensor) const override { return IsCombinable(tensor.dtype); }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    PipelineSpec spec;
    if (tiers.all->world_size().value() > 1) {
      spec.stages.push_back(MakePowerSgdStage(options_, layout, *tiers.all));
      return spec;
    }
    if (tiers.device == nullptr) {
      spec.stages.push_back(MakeDeliverStage(
          kPowerSgd, layout,
          {{.name = kPowerSgdError}, {.name = kPowerSgdQuery, .scope = StateScope::kCommon}}));
    }
    spec.stages.push_back(MakeAllReduceStage(ReduceOp::kAvg));
    return spec;
  }

 private:
  PowerSgdOptions options_;
};

REGISTER_ALGORITHM(power_sgd, "average of all ranks' gradients, matrices as low-rank factors",
                   PowerSgd);

}  // namespace
}  // namespace pelton
