#include "core/pipeline/operation_batch.h"

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

}  // namespace pelton
