#include "algorithms/stage/stage_of_rounds.h"

#include <utility>

namespace pelton {
namespace {

// Threads: as Stage. Owns: as ForwardingStage.
class StageOfRounds final : public ForwardingStage {
 public:
  StageOfRounds(std::unique_ptr<Stage> stage, WhichRounds which, uint64_t interval)
      : ForwardingStage(std::move(stage)), which_(which), interval_(interval) {}
  absl::Status Start(BucketRun& run, StageState* state) override {
    return RunsIn(run) ? ForwardingStage::Start(run, state) : absl::OkStatus();
  }
  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) override {
    if (!RunsIn(run)) return true;
    return ForwardingStage::Advance(run, state);
  }

 private:
  bool RunsIn(const BucketRun& run) const {
    return IsMultiple(run, interval_) == (which_ == WhichRounds::kMultiples);
  }

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
