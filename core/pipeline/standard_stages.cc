#include "core/pipeline/standard_stages.h"

#include <utility>

#include "core/base/status.h"

namespace pelton {

void OperationBatch::Clear() {
  operations_.clear();
  completions_.clear();
  finished_ = 0;
}

absl::StatusOr<bool> OperationBatch::Advance(BucketRun& run) {
  RETURN_IF_ERROR(LaunchMore(run));
  while (finished_ < completions_.size()) {
    const OperationRunner::State state = run.Query(completions_[finished_]);
    if (!state.done) return false;
    RETURN_IF_ERROR(state.status);
    ++finished_;
  }
  return finished_ == operations_.size();
}

absl::Status OperationBatch::LaunchMore(BucketRun& run) {
  while (completions_.size() < operations_.size() && completions_.size() - finished_ < kMostOpen) {
    const absl::StatusOr<Completion> completion = run.Launch(operations_[completions_.size()]);
    if (absl::IsResourceExhausted(completion.status())) break;  // tried again after progress
    RETURN_IF_ERROR(completion.status());
    completions_.push_back(*completion);
  }
  return absl::OkStatus();
}

namespace {

// Threads: as Stage. Owns: the operations of the round.
class AllReduceStage final : public Stage {
 public:
  explicit AllReduceStage(ReduceOp op) : op_(op) {}
  absl::string_view name() const override { return "allreduce"; }
  StageKind kind() const override { return StageKind::kExchange; }
  bool takes_device_memory() const override { return true; }

  absl::Status Start(BucketRun& run, StageState*) override {
    batch_.Clear();
    for (const Segment& segment : run.segments()) {
      Operation operation;
      operation.kind = OperationKind::kAllReduce;
      operation.dtype = run.layout().dtype;
      operation.reduce_op = op_;
      operation.count = segment.count;
      operation.set_source(segment.location);
      operation.set_target(segment.location);
      batch_.Add(operation);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override { return batch_.Advance(run); }
  bool has_launched_all() const override { return batch_.has_launched_all(); }

 private:
  const ReduceOp op_;
  OperationBatch batch_;
};

}  // namespace

std::unique_ptr<Stage> MakeAllReduceStage(ReduceOp op) {
  return std::make_unique<AllReduceStage>(op);
}

namespace {

// Threads: as Stage. Owns: as ForwardingStage.
class StageOfRounds final : public ForwardingStage {
 public:
  StageOfRounds(std::unique_ptr<Stage> stage, WhichRounds which, uint64_t interval)
      : ForwardingStage(std::move(stage)), which_(which), interval_(interval) {}
  bool takes_device_memory() const override { return wrapped().takes_device_memory(); }
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
