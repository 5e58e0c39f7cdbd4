#include "algorithms/stage/pair_exchange.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "algorithms/stage/graph_options.h"
#include "comm/reduction/linear_combination.h"
#include "comm/topology/peer_source.h"
#include "comm/window/window.h"
#include "comm/window/window_source.h"
#include "core/base/status.h"
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
    const double one = 1;
    const Term term{reinterpret_cast<const std::byte*>(&one), 1, DType::kFloat64};
    LinearCombination({&term, 1}, {bytes_.data() + count_ * SizeOf(dtype_), dtype_}, 1);
  }

  std::byte* data() { return bytes_.data(); }
  Tensor tensor() { return {bytes_.data(), count_ + 1, dtype_}; }
  Term Times(double factor) const { return {bytes_.data(), factor, dtype_}; }
  // Both: the elements without the last one.
  void Clear() { std::memset(bytes_.data(), 0, count_ * SizeOf(dtype_)); }
  void Become(absl::Span<const Term> terms) {
    LinearCombination(terms, {bytes_.data(), dtype_}, count_);
  }
  double counted() const {
    double value = 0;
    const Term term{bytes_.data() + count_ * SizeOf(dtype_), 1, dtype_};
    LinearCombination({&term, 1}, {reinterpret_cast<std::byte*>(&value), DType::kFloat64}, 1);
    return value;
  }

 private:
  std::vector<std::byte> bytes_;
  uint64_t count_;
  DType dtype_;
};

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
        dtype_(layout.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32),
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
  StageKind kind() const override { return StageKind::kExchange; }

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
    const std::vector<Neighbor> to = sequence_->NeighborsAt(step)->destinations;
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

}  // namespace

absl::StatusOr<std::unique_ptr<Stage>> MakePairExchangeStage(
    const BucketLayout& layout, const Tiers& tiers, std::unique_ptr<GraphSequence> graphs) {
  auto stage =
      std::make_unique<PairExchangeStage>(layout, tiers, std::max<uint64_t>(1, graphs->period()),
                                          NeighborsOf(tiers.all->rank(), *graphs));
  RETURN_IF_ERROR(stage->Open(layout, std::move(graphs)));
  return stage;
}

}  // namespace pelton
