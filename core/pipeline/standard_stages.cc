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
class OperationStage final : public Stage {
 public:
  OperationStage(absl::string_view name, FillBatch fill, bool next_may_follow)
      : name_(name), fill_(std::move(fill)), next_may_follow_(next_may_follow) {}
  absl::string_view name() const override { return name_; }
  bool takes_device_memory() const override { return true; }

  absl::Status Start(BucketRun& run, StageState*) override {
    batch_.Clear();
    fill_(run, batch_);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override { return batch_.Advance(run); }
  bool has_launched_all() const override { return next_may_follow_ && batch_.has_launched_all(); }

 private:
  const absl::string_view name_;
  FillBatch fill_;
  const bool next_may_follow_;
  OperationBatch batch_;
};

// Threads: as Stage. Owns: the step.
class LocalStage final : public Stage {
 public:
  LocalStage(absl::string_view name, FlatStep step, std::vector<StateBuffer> kept)
      : name_(name), step_(std::move(step)), kept_(std::move(kept)) {}
  absl::string_view name() const override { return name_; }

  std::unique_ptr<StageState> MakeState(const BucketLayout&) const override {
    if (kept_.empty()) return nullptr;
    auto state = std::make_unique<FlatState>();
    for (const StateBuffer& buffer : kept_) state->Add(buffer);
    return state;
  }
  absl::Status Start(BucketRun& run, StageState* state) override {
    if (run.layout().flat_count == 0) return absl::OkStatus();
    step_(run, state == nullptr ? absl::Span<const StateBuffer>() : state->buffers());
    return absl::OkStatus();
  }

 private:
  const absl::string_view name_;
  FlatStep step_;
  const std::vector<StateBuffer> kept_;
};

}  // namespace

std::unique_ptr<Stage> MakeOperationStage(absl::string_view name, FillBatch fill,
                                          bool next_may_follow) {
  return std::make_unique<OperationStage>(name, std::move(fill), next_may_follow);
}

std::unique_ptr<Stage> MakeInPlaceStage(absl::string_view name, Operation operation,
                                        bool next_may_follow) {
  const auto fill = [operation](const BucketRun& run, OperationBatch& batch) mutable {
    operation.dtype = run.layout().dtype;
    for (const Segment& segment : run.segments()) {
      operation.count = segment.count;
      operation.set_source(segment.location);
      operation.set_target(segment.location);
      batch.Add(operation);
    }
  };
  return MakeOperationStage(name, fill, next_may_follow);
}

std::unique_ptr<Stage> MakeAllReduceStage(ReduceOp op) {
  Operation allreduce;
  allreduce.kind = OperationKind::kAllReduce;
  allreduce.reduce_op = op;
  return MakeInPlaceStage("allreduce", allreduce);
}

std::unique_ptr<Stage> MakeLocalStage(absl::string_view name, FlatStep step,
                                      std::vector<StateBuffer> kept) {
  return std::make_unique<LocalStage>(name, std::move(step), std::move(kept));
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
