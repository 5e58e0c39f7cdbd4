#include "algorithms/stage/stage_of_rounds.h"

#include <utility>

namespace pelton {
namespace {

// Threads: as Stage. Owns: the stage.
class StageOfRounds final : public Stage {
 public:
  StageOfRounds(std::unique_ptr<Stage> stage, WhichRounds which, uint64_t interval)
      : stage_(std::move(stage)), which_(which), interval_(interval) {}
  absl::string_view name() const override { return stage_->name(); }
  StageKind kind() const override { return stage_->kind(); }
  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    return stage_->MakeState(layout);
  }
  void Prime(const BucketLayout& layout, const std::byte* flat, StageState& state) const override {
    stage_->Prime(layout, flat, state);
  }
  absl::Status Start(BucketRun& run, StageState* state) override {
    return RunsIn(run) ? stage_->Start(run, state) : absl::OkStatus();
  }
  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) override {
    if (!RunsIn(run)) return true;
    return stage_->Advance(run, state);
  }

 private:
  bool RunsIn(const BucketRun& run) const {
    return IsMultiple(run, interval_) == (which_ == WhichRounds::kMultiples);
  }

  const std::unique_ptr<Stage> stage_;
  const WhichRounds which_;
  const uint64_t interval_;
};

}  // namespace

bool IsMultiple(const BucketRun& run, uint64_t interval) {
  return interval > 0 && static_cast<uint64_t>(run.round().value()) % interval == 0;
}

std::unique_ptr<Stage> MakeStageOfRounds(std::unique_ptr<Stage> stage, WhichRounds which,
                                         uint64_t interval) {
  return std::make_unique<StageOfRounds>(std::move(stage), which, interval);
}

}  // namespace pelton
