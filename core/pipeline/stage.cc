#include "core/pipeline/stage.h"

#include <algorithm>

#include "core/base/limits.h"

namespace pelton {

absl::string_view NameOf(StageKind kind) {
  switch (kind) {
    case StageKind::kPrepare:
      return "prepare";
    case StageKind::kTransform:
      return "transform";
    case StageKind::kExchange:
      return "exchange";
    case StageKind::kMerge:
      return "merge";
  }
  return "unknown stage";
}

Stream& BucketRun::stream() {
  if (DeviceQueue* const queue = device()) return queue->stream();
  return host_stream_;
}

absl::Status BucketRun::Begin() {
  DeviceQueue* const queue = device();
  return queue == nullptr ? absl::OkStatus() : queue->AwaitReady(layout_->id);
}

absl::StatusOr<Completion> BucketRun::Launch(Operation operation) {
  if (in_flight_.size() >= limits::kMaxOperationsInFlight) PruneFinished();
  operation.bucket = InMode(layout_->id, tracker_->mode());
  absl::StatusOr<Completion> completion = runner_->Launch(operation, stream());
  if (!completion.ok()) return completion;
  ++launch_count_;
  last_operation_ = operation;
  in_flight_.push_back(*completion);
  last_ = *completion;
  return completion;
}

OperationRunner::State BucketRun::Query(Completion completion) {
  OperationRunner::State state = runner_->Follow(completion, stream());
  if (state.done && absl::IsInvalidArgument(state.status)) disagreed_ = true;
  return state;
}

bool BucketRun::Drained() {
  PruneFinished();
  return in_flight_.empty();
}

std::optional<Completion> BucketRun::OnDevice() {
  if (device() == nullptr || last_.ticket == 0 || runner_->Query(last_).done) return std::nullopt;
  return last_;
}

void BucketRun::PruneFinished() {
  const auto finished = [this](Completion completion) {
    return runner_->Follow(completion, stream()).done;
  };
  in_flight_.erase(std::remove_if(in_flight_.begin(), in_flight_.end(), finished),
                   in_flight_.end());
}

void FlatState::Add(StateBuffer buffer) {
  owned_.push_back(std::make_unique<std::byte[]>(buffer.count * SizeOf(buffer.dtype)));
  buffer.data = owned_.back().get();
  buffers_.push_back(buffer);
}

}  // namespace pelton
