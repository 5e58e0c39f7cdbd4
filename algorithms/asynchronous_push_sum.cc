// Asynchronous push-sum: beside training, and on no step's path, each rank gives shares of its
// weights along the edges of a graph that may be directed and change, in rounds of its own. No rank
// waits for another one.
//
// A round at rank i, over a window (PushToWindowsStage below), with the numerator s that
// begins as the weights and the share w that begins at 1:
//   s += by how much training has changed the weights
//   s, w += what lies in this rank's slots
//   if w is at least 1 / 2: 1 / (1 + destinations) of s and of w is added to the slot that each
//   destination has for this rank, and the rest of both is kept; destinations are those that have
//   collected what was there
//   later: weights += s / w - the weights as they were
// The sums of s and of w over all ranks and slots are kept, up to rounding, whatever ranks learn
// meanwhile. The mean of the weights s / w is not: a rank's s / w counts by its w. In the long run
// all ranks have the sum of s over the sum of w for their weights, so that every rank's training
// counts alike. backend/averaging_loop.h takes the snapshots, adds the results and stops the ranks.
// When all have been asked to stop, each has a last round that only collects; s and w go on after
// it, from whichever weights there are then.
//
// A rank whose rounds stand still holds up nobody on its own host (PushToWindowsStage); ranks
// on other hosts may have too little to give until it goes on. Nobody's training waits.
//
// Steps: one accumulate per bucket, destination and round, and one update. Bytes: for a bucket of B
// bytes B + 4 to each destination (float64: B + 8; 16-bit tensors, whose numerators are float32:
// 2 B + 4), and nothing in a round that gives nothing. Memory: 2 B (16-bit tensors: 3 B), and up to
// 4 B for each source (16-bit tensors: 8 B).
// Result: depends on when the ranks come to their rounds; ranks differ.
// Source: after Assran et al., Stochastic Gradient Push for Distributed Deep Learning, arXiv
// 1811.10792, whose ranks are at the same round, and Assran and Rabbat, Asynchronous Gradient-Push,
// arXiv 1803.08950, whose ranks give in each of their rounds.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "algorithms/codec/error_feedback.h"
#include "algorithms/stage/graph_algorithm.h"
#include "algorithms/stage/graph_options.h"
#include "comm/graph/graph_sequence.h"
#include "comm/reduction/linear_combination.h"
#include "comm/tiers.h"
#include "comm/topology/peer_source.h"
#include "comm/window/window.h"
#include "comm/window/window_source.h"
#include "core/base/status.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"
#include "core/plan/round_mode.h"

namespace pelton {
namespace {

// A rank that gave in each of its rounds while nobody gives to it would halve w again and again,
// and its weights, which move by 1 / w of what training changes in s, would run away. With this
// bound w is at least 1 / 2 of 1 / (1 + destinations). A higher bound would be kinder to the
// weights of a fast rank, but where a rank stands still the others have less than 1 each, of three
// ranks over one_peer_exponential 1 / 2, and have to go on.
constexpr double kEnoughToGive = 0.5;

// 1 / count, rounded down to what float32 has of numbers below 1, so that what is left of 1 after
// some parts is exact, too. Parts of three and a rest that are rounded each for itself would let
// the sums shrink or grow without end.
double PartOf(size_t count) {
  constexpr double kSteps = 1 << 24;
  return std::floor(kSteps / static_cast<double>(count)) / kSteps;
}

// Push-sum by windows, with rounds that no other rank takes part in.
//
// A bucket, weights x, becomes by how much x is to change. Of each bucket a rank has the numerator
// s, which begins as x, and the share w, which begins at 1; z = s / w are its weights. In a round
// of its own a rank
//   adds what training has changed since its last round: s += x - z, with z as that round left it;
//   collects what lies in its slots, shares of s and of w: both are added;
//   gives, if w >= kEnoughToGive, 1 / (1 + destinations) of s and of w to each of its destinations
//   in the graph that have collected what it gave them before, and keeps the rest;
//   has z = s / w for its weights.
// The window has w behind the elements of s, so that a rank never sees a share of one without that
// of the other. What is given is taken from the giver, so that the sums of s and of w over all
// ranks and slots stay what they are, up to rounding, in any interleaving (MASS-1). They are kept
// and not the mean of z. Each rank goes through the graphs by the number of rounds in which it has
// had enough to give, so that it uses each of them, however often it has not. Weights of the graphs
// are not looked at.
//
// A rank whose rounds stand still holds up nobody: it takes one share from each rank that has an
// edge to it, and the others go on with the rest. Of a rank on another host it is not known what it
// has collected, so that it takes shares until those that give to it have too little.
//
// A round in RoundMode::kCollecting collects and gives nothing: after it nothing is left between
// ranks. What has changed the weights until the next round is no training then, or not of this sum:
// they may have been loaded. So that round begins with s = w x. Without such a change s and w go on
// as they were.
//
// Works in float64 for float64, else in float32. Blocks: never inside a host, but in Open, as
// WindowSource::Make.
// Threads: as Stage. Owns: its window and the memory of s and w, and the weights that it left.
class PushToWindowsStage final : public Stage {
 public:
  PushToWindowsStage(const BucketLayout& layout, const Tiers& tiers)
      : rank_(tiers.all->rank()),
        windows_(*tiers.windows),
        count_(layout.flat_count),
        dtype_(FeedbackDType(layout.dtype)),
        memory_((count_ + 1) * SizeOf(dtype_)),
        left_(count_ * SizeOf(layout.dtype)) {}

  absl::Status Open(const BucketLayout& layout, std::unique_ptr<GraphSequence> graphs) {
    EdgesInAnyStep edges = EdgesInAnyStepOf(rank_, *graphs);
    neighbors_ = std::make_unique<GraphNeighbors>(std::move(graphs), rank_);
    for (const Rank source : edges.sources) sources_.push_back({source, 1});
    WindowOptions options;
    options.name = absl::StrCat("shares of bucket ", layout.id.value());
    options.tensor = {memory_.data(), count_ + 1, dtype_};
    options.shape = {static_cast<int64_t>(count_ + 1)};
    options.sources = std::move(edges.sources);
    options.destinations = std::move(edges.destinations);
    options.zero_init = true;
    ASSIGN_OR_RETURN(window_, windows_.Make(std::move(options)));
    FillNumbers({share_data(), dtype_}, 1, 1);
    return absl::OkStatus();
  }

  absl::string_view name() const override { return "push to windows"; }

  absl::Status Start(BucketRun& run, StageState*) override {
    if (count_ == 0) return absl::OkStatus();
    TakeChange(run);
    access_ = {.deadline = windows_.deadline()};
    // Before this rank gives, so that it has as much as there is to give of, and to move by.
    RETURN_IF_ERROR(
        window_->UpdateFromInlets({.own_weight = 1, .sources = sources_, .resets = true}, access_));
    is_first_ = run.mode() == RoundMode::kCollecting;
    if (!is_first_) RETURN_IF_ERROR(Give());
    Deliver(run);
    return absl::OkStatus();
  }

 private:
  // Of s, with w behind it: the window's tensor, which may lie elsewhere than where it was made.
  std::byte* data() const { return static_cast<std::byte*>(window_->options().tensor.data); }
  std::byte* share_data() const { return data() + count_ * SizeOf(dtype_); }
  double share() const { return NumberAt(share_data(), dtype_); }

  void TakeChange(const BucketRun& run) {
    const DType dtype = run.layout().dtype;
    const Term found{run.flat(), 1, dtype};
    if (!is_first_) {
      // The difference first: both are large where it is small.
      const Term moved[] = {found, {left_.data(), -1, dtype}, {data(), 1, dtype_}};
      LinearCombination(moved, {data(), dtype_}, count_);
    } else if (std::memcmp(run.flat(), left_.data(), left_.size()) != 0) {
      const Term begun{found.data, share(), dtype};
      LinearCombination({&begun, 1}, {data(), dtype_}, count_);
    }
  }

  absl::Status Give() {
    if (share() < kEnoughToGive) return absl::OkStatus();
    std::vector<Neighbor> to = neighbors_->NeighborsAt(turn_++).destinations;
    const double part = PartOf(1 + to.size());
    std::erase_if(to, [this](const Neighbor& next) { return !window_->IsCollected(next.rank); });
    for (Neighbor& destination : to) destination.weight = part;
    const double kept = 1 - static_cast<double>(to.size()) * part;
    return window_->Accumulate(window_->options().tensor, to, kept, access_);
  }

  // The bucket becomes z - x, and what is left x + (z - x), as the rounds' owner will have it where
  // nobody trains meanwhile: z itself would come out otherwise, above all in 16 bits.
  void Deliver(const BucketRun& run) {
    const DType dtype = run.layout().dtype;
    std::memcpy(left_.data(), run.flat(), left_.size());
    const Term change[] = {{data(), 1 / share(), dtype_}, {run.flat(), -1, dtype}};
    LinearCombination(change, {run.flat(), dtype}, count_);
    const Term left[] = {{left_.data(), 1, dtype}, {run.flat(), 1, dtype}};
    LinearCombination(left, {left_.data(), dtype}, count_);
  }

  const Rank rank_;
  WindowSource& windows_;
  const uint64_t count_;
  const DType dtype_;
  std::vector<std::byte> memory_;  // s and w, unless the window has them elsewhere
  std::vector<std::byte> left_;    // the weights as the last round leaves them, before training
  std::unique_ptr<GraphNeighbors> neighbors_;
  std::vector<Neighbor> sources_;  // in any step
  std::unique_ptr<Window> window_;
  uint64_t turn_ = 0;     // among the graphs
  bool is_first_ = true;  // or the first after one that only collected
  WindowAccess access_;   // of the round
};

// Threads: as Algorithm. Owns: its options.
class AsynchronousPushSum final : public AloneAlgorithm {
 public:
  AsynchronousPushSum() : AloneAlgorithm(GraphOptions("one_peer_exponential")) {}
  std::string BytesSent() const override {
    return "B and one element to each destination, 16-bit tensors as float32, and nothing in a "
           "round in which it has too little to give";
  }

 private:
  absl::StatusOr<std::unique_ptr<Stage>> StageFor(
      const BucketLayout& layout, const Tiers& tiers,
      std::unique_ptr<GraphSequence> graphs) const override {
    auto stage = std::make_unique<PushToWindowsStage>(layout, tiers);
    RETURN_IF_ERROR(stage->Open(layout, std::move(graphs)));
    return stage;
  }
};

REGISTER_ALGORITHM(
    asynchronous_push_sum,
    "shares of weights over directed and changing graphs, on a timer beside training",
    AsynchronousPushSum);

}  // namespace
}  // namespace pelton
