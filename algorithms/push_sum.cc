// Stochastic gradient push: decentralized SGD over graphs that are directed, change, and need not
// keep the mean over the ranks, such as a star in which everyone gives equal shares.
//
// State and formulas: algorithms/stage/push_sum.h. The model's weights are z = s / w, at which
// gradients are taken; what the optimizer has changed in them is added to the numerator s. Each
// rank gives 1 / (1 + its destinations) of s and of w to itself and to each destination; what
// weights the graph has makes no difference. All ranks are at the same round.
//
// With a delay d an exchange begins after a step and ends d steps later, beside training: the
// shares that a rank gives are collected at most d steps after they were given. What is added to
// the weights then is by how much they were away from z, and what training changes meanwhile goes
// into s with the next exchange. In the paper's overlap, algorithm 2, a rank takes these steps with
// the part of s and w that it has kept, whose z is the same, but which a step moves further.
//
// Another number of ranks goes on with s = the weights, which are all ranks' alike then, and w = 1.
//
// Steps: a send for each destination and a receive for each source per bucket; in a global round an
// allreduce.
// Bytes: for a bucket of B bytes B + 4 to each destination (float64: B + 8; 16-bit tensors, whose
// numerators are float32: 2 B + 4); in a global round those of an allreduce of as much.
// Result: ranks differ.
// Source: Assran et al., Stochastic Gradient Push for Distributed Deep Learning, arXiv 1811.10792,
// algorithm 1; with a delay after algorithm 2.
#include "algorithms/stage/push_sum.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/stage/graph_algorithm.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Threads: as Algorithm. Owns: its options.
class PushSum final : public GraphAlgorithm {
 public:
  PushSum() : GraphAlgorithm(GraphOptions("one_peer_exponential")) {}
  void BindOptions(OptionTable& table) override {
    GraphAlgorithm::BindOptions(table);
    table.Count("delay", &delay_, 0, "steps that an exchange may take; below interval");
  }
  absl::Status CheckOptions() override {
    const uint64_t interval = GraphAlgorithm::schedule().interval;
    if (delay_ < interval) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("option delay is ", delay_, ", not below interval, ", interval));
  }
  Schedule schedule() const override {
    Schedule schedule = GraphAlgorithm::schedule();
    schedule.delay = delay_;
    if (delay_ > 0) schedule.commit = {.kept = 1, .taken = 1};
    return schedule;
  }
  std::string BytesSent() const override {
    return "B and one element to each destination, 16-bit tensors as float32; in global rounds "
           "those of an allreduce of as much";
  }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    ASSIGN_OR_RETURN(NeighborMean::Over over, OverEqualShares(tiers));
    ASSIGN_OR_RETURN(
        std::unique_ptr<Stage> stage,
        MakePushSumStage(*tiers.all, std::move(over), layout, /*gives_change=*/delay_ > 0));
    PipelineSpec spec;
    spec.stages.push_back(std::move(stage));
    return spec;
  }

 private:
  uint64_t delay_ = 0;
};

REGISTER_ALGORITHM(push_sum,
                   "weights averaged over directed and changing graphs, by shares of a sum",
                   PushSum);

}  // namespace
}  // namespace pelton
