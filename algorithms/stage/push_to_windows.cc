#include "algorithms/stage/push_to_windows.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "algorithms/codec/error_feedback.h"
#include "algorithms/stage/graph_options.h"
#include "comm/reduction/linear_combination.h"
#include "comm/topology/peer_source.h"
#include "comm/window/window.h"
#include "comm/window/window_source.h"
#include "core/base/status.h"
#include "core/plan/round_mode.h"

namespace pelton {
namespace {

// 1 / count, rounded down to what float32 has of numbers below 1, so that what is left of 1 after
// some parts is exact, too. Parts of three and a rest that are rounded each for itself would let
// the sums shrink or grow without end.
double PartOf(size_t count) {
  constexpr double kSteps = 1 << 24;
  return std::floor(kSteps / static_cast<double>(count)) / kSteps;
}

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
    const double one = 1;
    const Term whole{reinterpret_cast<const std::byte*>(&one), 1, DType::kFloat64};
    LinearCombination({&whole, 1}, {share_data(), dtype_}, 1);
    return absl::OkStatus();
  }

  absl::string_view name() const override { return "push to windows"; }
  StageKind kind() const override { return StageKind::kExchange; }

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
  double share() const {
    double value = 0;
    const Term term{share_data(), 1, dtype_};
    LinearCombination({&term, 1}, {reinterpret_cast<std::byte*>(&value), DType::kFloat64}, 1);
    return value;
  }

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
    std::vector<Neighbor> to = neighbors_->NeighborsAt(turn_++)->destinations;
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

}  // namespace

absl::StatusOr<std::unique_ptr<Stage>> MakePushToWindowsStage(
    const BucketLayout& layout, const Tiers& tiers, std::unique_ptr<GraphSequence> graphs) {
  auto stage = std::make_unique<PushToWindowsStage>(layout, tiers);
  RETURN_IF_ERROR(stage->Open(layout, std::move(graphs)));
  return stage;
}

}  // namespace pelton
