// Asynchronous pairs: beside training, and on no step's path, each rank takes the mean of its
// weights with one other rank at a time, in rounds of its own. No rank waits for another one,
// whatever the graph, and a slow rank holds up nobody.
//
// A round at rank i, over windows (PairExchangeStage below):
//   x = weights + what answers to this rank's offers have given
//   for each offer x_k that lies here: d = (x_k - x) / 2; x += d, and -d is given back to rank k
//   x is offered to one neighbour, the next in turn
//   later: weights += by how much x has changed
// Each d is added at one end and subtracted at the other, so that the mean over the ranks is kept,
// up to rounding, whatever they learn meanwhile. backend/averaging_loop.h takes the snapshots, adds
// the results and stops the ranks. When all have been asked to stop, each has a last round that
// only collects.
//
// Windows are of float64 for weights of float64, else of float32; what is added to weights of 16
// bits is rounded to them.
//
// Steps: one put per bucket and round, another that withdraws an offer which nobody has answered,
// and one accumulate per answer. Bytes: for a bucket of B bytes B for the offer, and B for each
// answer, of which a rank's offer gets one at most; B more where it is withdrawn. Memory: 6 B, and
// for each neighbour up to 4 B of each of two windows.
// Result: depends on when the ranks come to their rounds; ranks differ.
// Source: after Lian et al., Asynchronous Decentralized Parallel Stochastic Gradient Descent, arXiv
// 1710.06952, whose ranks wait for the peer's answer; here an offer waits in the peer's memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
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

// The ranks that share an edge with `rank`, in either direction and any step. A slot takes memory
// once it is written.
std::vector<Rank> NeighborsOf(Rank rank, const GraphSequence& graphs) {
  const EdgesInAnyStep edges = EdgesInAnyStepOf(rank, graphs);
  std::set<Rank> neighbors(edges.sources.begin(), edges.sources.end());
  neighbors.insert(edges.destinations.begin(), edges.destinations.end());
  return {neighbors.begin(), neighbors.end()};
}

// Elements of a bucket, and behind them one more that counts.
// Threads: one. Owns: the memory.
class CountedElements {
 public:
  CountedElements(uint64_t count, DType dtype)
      : bytes_((count + 1) * SizeOf(dtype)), count_(count), dtype_(dtype) {
    FillNumbers({bytes_.data() + count_ * SizeOf(dtype_), dtype_}, 1, 1);
  }

  std::byte* data() { return bytes_.data(); }
  Tensor tensor() { return {bytes_.data(), count_ + 1, dtype_}; }
  Term Times(double factor) const { return {bytes_.data(), factor, dtype_}; }
  // Both: the elements without the last one.
  void Clear() { std::memset(bytes_.data(), 0, count_ * SizeOf(dtype_)); }
  void Become(absl::Span<const Term> terms) {
    LinearCombination(terms, {bytes_.data(), dtype_}, count_);
  }
  double counted() const { return NumberAt(bytes_.data() + count_ * SizeOf(dtype_), dtype_); }

 private:
  std::vector<std::byte> bytes_;
  uint64_t count_;
  DType dtype_;
};

// Means of two ranks at a time, by windows, with rounds that no other rank takes part in.
//
// A bucket, weights x, becomes by how much x is to change. In a round of its own a rank
//   collects what answers to its own offers gave it: x += their sum;
//   answers each offer x_k that lies here: d = (x_k - x) / 2, x += d, and gives -d to rank k;
//   withdraws its last offer, if that is unanswered and was made to another rank;
//   offers x, as it is then, to one neighbour, the next in turn among those that it has in the
//   graph of the round.
// An offer is answered once, and each d is added at one end and -d at the other, so that the sum
// over all ranks stays what it is, up to rounding, once every rank has collected (MASS-1). A rank
// has one offer at a time: answers to several old ones together would take it past the others'
// mean. Offers go along the edges, and answers come back along them, so that the graphs need be no
// symmetric ones; their weights are not looked at.
//
// A round in RoundMode::kCollecting gives nothing: it collects, and forgets the offers that lie
// here. After it nothing is left between ranks.
//
// Works in float64 for float64, else in float32. Blocks: never inside a host, but in Open, as
// WindowSource::Make.
// Threads: as Stage. Owns: its windows, their tensors, and its scratch.
class PairExchangeStage final : public Stage {
 public:
  PairExchangeStage(const BucketLayout& layout, const Tiers& tiers, uint64_t period,
                    std::vector<Rank> neighbors)
      : rank_(tiers.all->rank()),
        period_(period),
        neighbors_(std::move(neighbors)),
        windows_(*tiers.windows),
        count_(layout.flat_count),
        dtype_(FeedbackDType(layout.dtype)),
        weights_(count_, dtype_),
        change_(count_, dtype_),
        difference_(count_, dtype_),
        arrived_(count_, dtype_),
        kept_of_offers_(count_, dtype_),
        kept_of_answers_(count_, dtype_) {}

  absl::Status Open(const BucketLayout& layout, std::unique_ptr<GraphSequence> graphs) {
    sequence_ = std::make_unique<GraphNeighbors>(std::move(graphs), rank_);
    ASSIGN_OR_RETURN(offers_, MakeWindow(layout, "offers", kept_of_offers_));
    ASSIGN_OR_RETURN(answers_, MakeWindow(layout, "answers", kept_of_answers_));
    return absl::OkStatus();
  }

  absl::string_view name() const override { return "pair exchange"; }

  absl::Status Start(BucketRun& run, StageState*) override {
    const Term weights{run.flat(), 1, run.layout().dtype};
    weights_.Become({&weights, 1});
    change_.Clear();
    access_ = {.deadline = windows_.deadline()};
    // First, so that the answers that this rank gives are made of weights as they are by now.
    RETURN_IF_ERROR(CollectAnswers());
    if (run.mode() == RoundMode::kCollecting) {
      RETURN_IF_ERROR(ForgetOffers());
    } else {
      RETURN_IF_ERROR(AnswerOffers());
      RETURN_IF_ERROR(Offer(static_cast<uint64_t>(run.round().value()) - 1));
    }
    const Term change = change_.Times(1);
    LinearCombination({&change, 1}, {run.flat(), run.layout().dtype}, count_);
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<std::unique_ptr<Window>> MakeWindow(const BucketLayout& layout,
                                                     absl::string_view name,
                                                     CountedElements& elements) {
    WindowOptions options;
    options.name = absl::StrCat(name, " of bucket ", layout.id.value());
    options.tensor = elements.tensor();
    options.shape = {static_cast<int64_t>(count_ + 1)};
    options.sources = neighbors_;
    options.destinations = neighbors_;
    options.zero_init = true;
    return windows_.Make(std::move(options));
  }

  void Change(const CountedElements& by) {
    const Term weights[] = {weights_.Times(1), by.Times(1)};
    weights_.Become(weights);
    const Term change[] = {change_.Times(1), by.Times(1)};
    change_.Become(change);
  }

  absl::Status AnswerOffers() {
    // An update makes all versions 0, so they are read before the first one. An offer that is made
    // after that, and whose version an update takes, stays unanswered, and is withdrawn or made
    // anew by its rank.
    for (const auto& [source, version] : offers_->versions()) {
      if (version == 0) continue;
      const Neighbor from[] = {{source, 1}};
      RETURN_IF_ERROR(offers_->UpdateFromInlets(
          {.own_weight = 0, .sources = from, .target = arrived_.data()}, access_));
      if (arrived_.counted() == 0) continue;  // withdrawn
      const Term halves[] = {arrived_.Times(0.5), weights_.Times(-0.5)};
      difference_.Become(halves);
      Change(difference_);
      // Minus the difference, and minus one for the answer.
      const Neighbor back[] = {{source, -1}};
      RETURN_IF_ERROR(answers_->Accumulate(difference_.tensor(), back, 1, access_));
    }
    return absl::OkStatus();
  }

  absl::Status CollectAnswers() {
    std::vector<Neighbor> all;
    for (const Rank neighbor : neighbors_) all.push_back({neighbor, 1});
    RETURN_IF_ERROR(answers_->UpdateFromInlets(
        {.own_weight = 0, .sources = all, .resets = true, .target = arrived_.data()}, access_));
    if (arrived_.counted() == 0) return absl::OkStatus();
    asked_.reset();
    Change(arrived_);
    return absl::OkStatus();
  }

  absl::Status Offer(uint64_t step) {
    const std::optional<Rank> next = NextPeer(step);
    if (asked_.has_value() && asked_ != next) {
      const Neighbor withdrawn[] = {{*asked_, 0}};
      RETURN_IF_ERROR(offers_->Put(weights_.tensor(), withdrawn, 1, access_));
    }
    asked_ = next;
    if (!next.has_value()) return absl::OkStatus();
    const Neighbor offered[] = {{*next, 1}};
    return offers_->Put(weights_.tensor(), offered, 1, access_);
  }

  std::optional<Rank> NextPeer(uint64_t step) {
    const std::vector<Neighbor> to = sequence_->NeighborsAt(step).destinations;
    if (to.empty()) return std::nullopt;
    return to[step / period_ % to.size()].rank;
  }

  absl::Status ForgetOffers() {
    asked_.reset();
    return offers_->UpdateFromInlets({.own_weight = 0, .target = arrived_.data()}, access_);
  }

  const Rank rank_;
  const uint64_t period_;  // steps until the graphs begin anew, or 1
  const std::vector<Rank> neighbors_;
  WindowSource& windows_;
  const uint64_t count_;
  const DType dtype_;
  std::unique_ptr<GraphNeighbors> sequence_;
  CountedElements weights_;  // x, and 1, as it is offered
  CountedElements change_;
  CountedElements difference_;  // d, and 1 for the answer
  CountedElements arrived_;
  // The windows' own tensors, of which nothing is used but that there have to be some.
  CountedElements kept_of_offers_;
  CountedElements kept_of_answers_;
  std::unique_ptr<Window> offers_;
  std::unique_ptr<Window> answers_;
  std::optional<Rank> asked_;  // to whom the last offer was made, while no answer has come
  WindowAccess access_;        // of the round
};

// Threads: as Algorithm. Owns: its options.
class AsynchronousPairs final : public AloneAlgorithm {
 public:
  AsynchronousPairs()
      : AloneAlgorithm(GraphOptions(), "what one rank adds another one subtracts") {}
  std::string BytesSent() const override {
    return "B to one neighbour, and B for each offer that it answers";
  }

 private:
  absl::StatusOr<std::unique_ptr<Stage>> StageFor(
      const BucketLayout& layout, const Tiers& tiers,
      std::unique_ptr<GraphSequence> graphs) const override {
    auto stage =
        std::make_unique<PairExchangeStage>(layout, tiers, std::max<uint64_t>(1, graphs->period()),
                                            NeighborsOf(tiers.all->rank(), *graphs));
    RETURN_IF_ERROR(stage->Open(layout, std::move(graphs)));
    return stage;
  }
};

REGISTER_ALGORITHM(asynchronous_pairs,
                   "means of two ranks at a time over a graph, on a timer beside training",
                   AsynchronousPairs);

}  // namespace
}  // namespace pelton
