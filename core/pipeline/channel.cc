#include "core/pipeline/channel.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/trace/trace.h"

namespace pelton {

Channel::~Channel() {
  if (idle()) return;
  const absl::Status reason = absl::CancelledError("the channel has ended");
  Abort(reason);
  if (current_.has_value()) Finish(*std::exchange(current_, std::nullopt), reason);
}

void Channel::Push(Pipeline& pipeline, BucketRun run, BucketCompletion completion) {
  Job& job = queue_.emplace_back();
  job.pipeline = &pipeline;
  job.run.emplace(std::move(run));
  job.completion.emplace(std::move(completion));
}

void Channel::Push(const Operation& operation, absl::AnyInvocable<void(absl::Status) &&> done) {
  Job& job = queue_.emplace_back();
  job.operation = operation;
  job.done = std::move(done);
}

bool Channel::Advance() {
  // What a job launches may be what a peer waits for: it counts as much as its end does.
  const auto launches = [](const Job& job) {
    return job.run.has_value() ? job.run->launch_count() : job.launched.ticket;
  };
  bool moved = false;
  while (!idle()) {
    if (!current_.has_value()) {
      current_.emplace(std::move(queue_.front()));
      queue_.pop_front();
      launched_at_ = clock_.Now();
      moved = true;
    }
    const uint64_t launched = launches(*current_);
    const absl::StatusOr<bool> done = Step(*current_);
    if (done.ok() && !*done) return moved || launches(*current_) != launched;
    // Out of `current_` first: whoever hears of the completion may push the next bucket.
    Finish(*std::exchange(current_, std::nullopt), done.status());
    moved = true;
  }
  return moved;
}

absl::StatusOr<bool> Channel::Step(Job& job) {
  return job.pipeline != nullptr ? StepBucket(job) : StepOperation(job);
}

absl::StatusOr<bool> Channel::StepBucket(Job& job) {
  BucketRun& run = *job.run;
  const uint64_t launches = run.launch_count();
  while (job.failure.ok() && job.stage < job.pipeline->apply_begin()) {
    Stage& stage = job.pipeline->stage(job.stage);
    StageState* const state = job.pipeline->state(job.stage);
    if (!std::exchange(job.stage_started, true)) {
      job.failure = stage.Start(run, state);
      if (!job.failure.ok()) break;
    }
    const absl::StatusOr<bool> done = stage.Advance(run, state);
    if (!done.ok()) {
      job.failure = done.status();
      break;
    }
    if (run.launch_count() != launches) launched_at_ = clock_.Now();
    if (!*done) return false;
    ++job.stage;
    job.stage_started = false;
  }
  if (!run.Drained()) return false;  // OWN-1
  if (!job.failure.ok()) return job.failure;
  return true;
}

absl::StatusOr<bool> Channel::StepOperation(Job& job) {
  if (job.launched.ticket == 0) {
    ASSIGN_OR_RETURN(job.launched, runner_.Launch(job.operation, stream_));
  }
  const OperationRunner::State state = runner_.Query(job.launched);
  if (!state.done) return false;
  RETURN_IF_ERROR(state.status);
  return true;
}

void Channel::Finish(Job job, const absl::Status& status) {
  if (job.pipeline == nullptr) {
    if (!status.ok() && !absl::IsInvalidArgument(status)) Break(status);
    std::move(job.done)(status);
    return;
  }
  if (status.ok()) {
    std::move(*job.completion).Set(status);
    return;
  }
  if (status == failure_) {  // its text says it all
    std::move(*job.completion).Set(status);
    return;
  }
  std::string context = job.run->plan().Describe(job.run->layout().id);
  if (job.run->launch_count() > 0) {
    absl::StrAppend(&context, ", ", Describe(job.run->last_operation()));
  }
  const absl::Status annotated = Annotate(status, context);
  // A disagreement is known to all ranks, and the runner goes on. Any other failure may be this
  // rank's alone: the peers must not wait for what it will never launch.
  if (!job.run->disagreed()) Break(annotated);
  std::move(*job.completion).Set(annotated);
}

void Channel::Break(const absl::Status& reason) {
  if (!failure_.ok()) return;
  failure_ = reason;
  runner_.Abort(reason);
}

void Channel::Abort(const absl::Status& reason) {
  Break(reason);
  CancelQueued(reason);
}

void Channel::CancelQueued(const absl::Status& reason) {
  // The sink may look at the queue: it sees only what is left.
  while (!queue_.empty()) {
    Job job = std::move(queue_.front());
    queue_.pop_front();
    Finish(std::move(job), reason);
  }
}

std::string Channel::DescribeCurrent() const {
  if (!current_.has_value()) return "nothing";
  if (current_->pipeline == nullptr) return Describe(current_->operation);
  std::string text = current_->run->plan().Describe(current_->run->layout().id);
  if (current_->stage < current_->pipeline->stage_count()) {
    const Stage& stage = current_->pipeline->stage(current_->stage);
    absl::StrAppend(&text, ", ", NameOf(stage.kind()), " '", stage.name(), "'");
  }
  if (current_->run->launch_count() > 0) {
    absl::StrAppend(&text, ", ", Describe(current_->run->last_operation()));
  }
  return text;
}

}  // namespace pelton
