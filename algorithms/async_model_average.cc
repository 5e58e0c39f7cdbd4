// Asynchronous model average: beside training, and on no step's path, the ranks average snapshots
// of their weights, again and again; each adds to its weights by how much the average differs from
// its own snapshot. What it has learnt in the meantime is kept.
//
//   snapshot_i = x_i;  d_i = (sum of all ranks' snapshots) / n - snapshot_i;  later: x_i += d_i
//
// backend/averaging_loop.h takes the snapshots and adds the results.
//
// Steps: one allreduce per bucket and round. Bytes: for a bucket of B bytes those of the
// communicator's allreduce of B bytes, each round; B of memory for the snapshot.
// Result: bitwise the AVG allreduce less this rank's elements; ranks differ.
// Source: Bagua's asynchronous model average; Lian et al., Asynchronous Decentralized Parallel
// Stochastic Gradient Descent, arXiv 1710.06952, with all ranks for peers.
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "comm/reduction/combinable.h"
#include "comm/reduction/linear_combination.h"
#include "core/base/status.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// Threads: as Algorithm. Owns: its options.
class AsyncModelAverage final : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("sync_interval_ms", &pause_ms_, 0,
                "from the end of a round to the start of the next; milliseconds");
    table.Refuse("codec",
                 "ranks stop together by an exact mean that travels in the same buckets; local_sgd "
                 "takes a codec");
  }
  std::string BytesSent() const override { return "those of an allreduce of B bytes"; }

  Schedule schedule() const override {
    return {.source = Source::kWeights,
            .trigger = TriggerKind::kTimer,
            .pause = absl::Milliseconds(pause_ms_),
            .commit = {.kept = 1, .taken = 1}};
  }
  PlanConstraints Constraints() const override { return {.allows_standalone = false}; }
  bool Takes(const TensorSpec& tensor) const override { return IsCombinable(tensor.dtype); }
  bool RanksAgree() const override { return false; }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout&, const Tiers&) override {
    // What the bucket held when its round began, shared by two of its stages. It is of no use to
    // the next round, so it is no state.
    const auto snapshot = std::make_shared<std::vector<std::byte>>();
    PipelineSpec spec;
    spec.stages.push_back(MakeLocalStage("snapshot", [snapshot](const BucketRun& run, auto) {
      snapshot->assign(run.flat(), run.flat() + run.flat_size_bytes());
    }));
    spec.stages.push_back(MakeAllReduceStage(ReduceOp::kAvg));
    spec.stages.push_back(MakeLocalStage("difference", [snapshot](const BucketRun& run, auto) {
      const DType dtype = run.layout().dtype;
      const Term terms[] = {{run.flat(), 1, dtype}, {snapshot->data(), -1, dtype}};
      LinearCombination(terms, {run.flat(), dtype}, run.layout().flat_count);
    }));
    return spec;
  }

 private:
  uint64_t pause_ms_ = 500;
};

REGISTER_ALGORITHM(async_model_average, "average of all ranks' weights, on a timer beside training",
                   AsyncModelAverage);

}  // namespace
}  // namespace pelton
