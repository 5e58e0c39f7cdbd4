#include "algorithms/stage/push_sum.h"

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "algorithms/codec/error_feedback.h"
#include "comm/reduction/linear_combination.h"
#include "comm/scratch.h"
#include "core/base/status.h"
#include "core/pipeline/pipeline.h"

namespace pelton {
namespace {

// Threads: as Stage. Owns: its message, and a bucket's worth of weights.
class PushSumStage final : public Stage {
 public:
  PushSumStage(std::unique_ptr<NeighborMean> mean, std::unique_ptr<Scratch> message,
               bool gives_change)
      : mean_(std::move(mean)), message_(std::move(message)), gives_change_(gives_change) {}
  absl::string_view name() const override { return "push sum"; }

  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    const DType dtype = FeedbackDType(layout.dtype);
    auto state = std::make_unique<FlatState>();
    state->Add({.name = "numerator",
                .dtype = dtype,
                .scope = StateScope::kReplica,
                .count = layout.flat_count});
    // The mean of all ranks' is 0, and so another number of ranks begins with w = 1.
    state->Add({.name = "share_minus_one",
                .dtype = dtype,
                .scope = StateScope::kOwn,
                .count = layout.flat_count});
    if (gives_change_) {
      state->Add({.name = "left",
                  .dtype = layout.dtype,
                  .scope = StateScope::kReplica,
                  .begins_as_weights = true,
                  .count = layout.flat_count});
    }
    return state;
  }

  void Prime(const BucketLayout& layout, const std::byte* flat, StageState& state) const override {
    if (layout.flat_count == 0) return;
    const Term initial[] = {{flat, 1, layout.dtype}};
    const StateBuffer& numerator = state.buffers()[kNumerator];
    LinearCombination(initial, {numerator.data, numerator.dtype}, layout.flat_count);
    Stage::Prime(layout, flat, state);  // the weights that it left
  }

  absl::Status Start(BucketRun& run, StageState* state) override {
    const uint64_t count = run.layout().flat_count;
    if (count == 0) return absl::OkStatus();
    const DType dtype = run.layout().dtype;
    const StateBuffer& numerator = state->buffers()[kNumerator];
    const double share = ShareOf(*state);
    const std::byte* last = gives_change_ ? state->buffers()[kLeft].data : nullptr;
    if (last == nullptr) {
      last_.resize(count * SizeOf(dtype));
      const Term quotient[] = {{numerator.data, 1 / share, numerator.dtype}};
      LinearCombination(quotient, {last_.data(), dtype}, count);
      last = last_.data();
    }
    // The difference first: both are large where it is small.
    const Term moved[] = {
        {run.flat(), 1, dtype}, {last, -1, dtype}, {numerator.data, 1, numerator.dtype}};
    LinearCombination(moved, {message_->data(), numerator.dtype}, count);
    FillNumbers({ShareIn(run), numerator.dtype}, share, 1);
    return mean_->Begin(run, message_->data(), message_->At(0));
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) override {
    if (run.layout().flat_count == 0) return true;
    ASSIGN_OR_RETURN(const bool done, mean_->Advance(run));
    if (done) Take(run, *state);
    return done;
  }

 private:
  static constexpr size_t kNumerator = 0;
  static constexpr size_t kShare = 1;
  static constexpr size_t kLeft = 2;

  // The first element of a bucket's flat part is a tensor's, never a gap's.
  static double ShareOf(const StageState& state) {
    const StateBuffer& share = state.buffers()[kShare];
    return 1 + NumberAt(share.data, share.dtype);
  }

  // Behind the numerator.
  std::byte* ShareIn(const BucketRun& run) const {
    const BucketLayout& layout = run.layout();
    return message_->data() + layout.flat_count * SizeOf(FeedbackDType(layout.dtype));
  }

  void Take(const BucketRun& run, const StageState& state) const {
    const uint64_t count = run.layout().flat_count;
    const StateBuffer& numerator = state.buffers()[kNumerator];
    const StateBuffer& share = state.buffers()[kShare];
    std::memcpy(numerator.data, message_->data(), count * SizeOf(numerator.dtype));
    const double above_one = NumberAt(ShareIn(run), share.dtype) - 1;
    FillNumbers({share.data, share.dtype}, above_one, count);
    const DType dtype = run.layout().dtype;
    const Term quotient{numerator.data, 1 / ShareOf(state), numerator.dtype};
    if (!gives_change_) return LinearCombination({&quotient, 1}, {run.flat(), dtype}, count);
    std::byte* const left = state.buffers()[kLeft].data;
    std::memcpy(left, run.flat(), count * SizeOf(dtype));
    const Term change[] = {quotient, {run.flat(), -1, dtype}};
    LinearCombination(change, {run.flat(), dtype}, count);
    const Term merged[] = {{left, 1, dtype}, {run.flat(), 1, dtype}};
    LinearCombination(merged, {left, dtype}, count);
  }

  const std::unique_ptr<NeighborMean> mean_;
  const std::unique_ptr<Scratch> message_;
  const bool gives_change_;
  std::vector<std::byte> last_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Stage>> MakePushSumStage(Communicator& communicator,
                                                        NeighborMean::Over over,
                                                        const BucketLayout& layout,
                                                        bool gives_change) {
  const NeighborMean::Shape shape = {FeedbackDType(layout.dtype), layout.flat_count + 1};
  ASSIGN_OR_RETURN(
      std::unique_ptr<Scratch> message,
      Scratch::Create(communicator, "push message", shape.count * SizeOf(shape.dtype)));
  auto mean = std::make_unique<NeighborMean>(communicator, "neighbours' numerators",
                                             std::move(over), shape);
  return std::make_unique<PushSumStage>(std::move(mean), std::move(message), gives_change);
}

}  // namespace pelton
