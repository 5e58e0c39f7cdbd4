#include "core/pipeline/channel.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/floating_point.h"
#include "core/base/status.h"
#include "core/trace/trace.h"

namespace pelton {
namespace {

// Where a bucket's job is, for the error of its stage. An operation is named only where the stage
// has launched some: one of a stage before may be in flight, and need not be what has failed. A
// stage that waits for such a one says so itself.
template <typename Job>
std::string ContextOf(const Job& job) {
  std::string context = job.run->plan().Describe(job.run->layout().id);
  if (job.run->launch_count() > job.launches_before_stage) {
    absl::StrAppend(&context, ", ", Describe(job.run->last_operation()));
  }
  return context;
}

}  // namespace

Channel::~Channel() {
  if (idle()) return;
  const absl::Status reason =
      absl::CancelledError("the channel of the model's pipelines has ended");
  Abort(reason);
  while (!begun_.empty()) {
    Job job = std::move(begun_.front());
    begun_.pop_front();
    Finish(std::move(job), reason);
  }
}

void Channel::Push(Pipeline& pipeline, BucketRun&& run, BucketCompletion completion) {
  Job& job = queue_.emplace_back();
  job.pipeline = &pipeline;
  job.run.emplace(std::move(run));
  job.completion.emplace(std::move(completion));
  Show(job, "waits");
}

void Channel::Show(Job& job, absl::string_view what) const {
  if (absl::AnyInvocable<void()> end = std::exchange(job.end_range, nullptr)) end();
  if (what.empty() || viewer_ == nullptr || !viewer_->is_looking() || !job.run.has_value()) return;
  const BucketLayout& bucket = job.run->layout();
  uint64_t size_bytes = 0;
  for (SlotId slot : bucket.slots) size_bytes += job.run->plan().tensor(slot).size_bytes();
  job.end_range =
      viewer_->Begin(absl::StrCat("pelton:", job.run->plan().Describe(bucket.id), ", ",
                                  bucket.slots.size(), " tensors, ", size_bytes, " bytes, ", what));
}

void Channel::Push(const Operation& operation, absl::AnyInvocable<void(absl::Status) &&> done) {
  Job& job = queue_.emplace_back();
  job.operation = operation;
  job.done = std::move(done);
}

bool Channel::Job::has_launched_all() const {
  return pipeline != nullptr && stage_started && failure.ok() &&
         stage + 1 == pipeline->stage_count() && pipeline->stage(stage).has_launched_all();
}

void Channel::MoveTimes(absl::Duration by) {
  launched_at_ += by;
  for (OnDevice& bucket : on_device_) bucket.since += by;
}

bool Channel::CanBegin() const {
  if (queue_.empty()) return false;
  return begun_.empty() || (begun_.size() < kJobsAtOnce && begun_.back().has_launched_all());
}

bool Channel::Advance() {
  bool moved = AdvanceDevice();
  for (auto job = begun_.begin(); job != begun_.end() || CanBegin();) {
    if (job == begun_.end()) {
      begun_.splice(begun_.end(), queue_, queue_.begin());
      job = std::prev(begun_.end());
      Show(*job, "runs");
      launched_at_ = clock_.Now();
      moved = true;
    }
    // What a job launches may be what a peer waits for: it counts as much as its end does.
    const uint64_t launched = job->launch_count();
    const absl::StatusOr<bool> done = Step(*job);
    if (done.ok() && !*done) {
      moved |= job->launch_count() != launched;
      ++job;
      continue;
    }
    // Out of `begun_` first, because the sink that is told of the completion may push the next
    // bucket.
    std::list<Job> ended;
    ended.splice(ended.end(), begun_, job++);
    Finish(std::move(ended.front()), done.status());
    moved = true;
  }
  return moved;
}

bool Channel::AdvanceDevice() {
  bool moved = false;
  while (!on_device_.empty()) {
    const OperationRunner::State state = runner_.Query(on_device_.front().completion);
    if (!state.done) break;
    if (!state.status.ok()) {
      if (!failed_on_device_.has_value()) failed_on_device_ = on_device_.front().round;
      Abort(Annotate(state.status, DescribeOnDevice()));
    }
    on_device_.pop_front();
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
  while (job.failure.ok() && job.stage < job.pipeline->stage_count()) {
    const absl::StatusOr<bool> done = RunStage(job);
    if (!done.ok()) {
      job.failure = done.status();
      // It may have failed on this rank alone, while operations are in flight for which the others
      // are late. The abort ends those now.
      if (failure_.ok() && !run.disagreed()) {
        job.failure = Annotate(job.failure, ContextOf(job));
        Abort(job.failure);
      }
      break;
    }
    // The end of a call counts, too: one of another bucket that has waited for it begins now.
    const bool was_in_call = std::exchange(job.was_in_call, job.is_in_call());
    if (was_in_call != job.was_in_call || run.launch_count() != launches) {
      launched_at_ = clock_.Now();
    }
    if (!*done) {
      if (failure_.ok() || !run.Drained() || !GivesUp(job)) return false;
      break;
    }
    ++job.stage;
    job.stage_started = false;
    // Nothing begins after an abort: it may be a function of the user's.
    if (!failure_.ok() && job.stage < job.pipeline->stage_count()) job.failure = failure_;
  }
  if (!run.Drained()) return false;  // OWN-1
  if (!job.failure.ok()) return job.failure;
  return true;
}

// An abort ends operations, and nothing else that a stage may wait for, such as a lock or a call.
bool Channel::GivesUp(Job& job) {
  const bool is_in_call = job.is_in_call();
  if (is_in_call && clock_.Now() < failed_at_ + kLongestCallAfterAbort) return false;
  job.failure = failure_;
  if (!is_in_call) return true;
  const Stage& stage = job.pipeline->stage(job.stage);
  // It may be what the other ranks have waited for in vain, and they cannot name it.
  if (!absl::StrContains(failure_.message(), stage.name())) {
    job.failure = absl::Status(
        failure_.code(), absl::StrCat(stage.name(), " has not returned on this rank, where the ",
                                      "round has ended: ", failure_.message()));
  }
  return true;
}

absl::StatusOr<bool> Channel::RunStage(Job& job) {
  Stage& stage = job.pipeline->stage(job.stage);
  StageState* const state = job.pipeline->state(job.stage);
  const DefaultFloatingPoint scope;  // codecs and algorithms compute on every rank, too (SUM-1a)
  // Stages may call a user's code. An exception there fails the bucket on all ranks, with the
  // exception's text. If it left the turn it would end the scheduler, and the thread that waits for
  // the round would not know why.
  try {
    if (!std::exchange(job.stage_started, true)) {
      job.launches_before_stage = job.run->launch_count();
      if (job.stage == 0) RETURN_IF_ERROR(job.run->Begin());
      RETURN_IF_ERROR(stage.Start(*job.run, state));
    }
    return stage.Advance(*job.run, state);
  } catch (...) {
    return ExceptionIn(stage.name());
  }
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
  Show(job, "");
  if (job.pipeline == nullptr) {
    if (!status.ok() && !absl::IsInvalidArgument(status)) Abort(status);
    std::move(job.done)(status);
    return;
  }
  if (status.ok()) {
    if (const std::optional<Completion> last = job.run->OnDevice()) {
      const BucketRun& run = *job.run;
      on_device_.push_back(
          {*last, run.last_operation(), &run.plan(), run.layout().id, run.round(), clock_.Now()});
    }
    std::move(*job.completion).Set(status);
    return;
  }
  if (job.stage < job.pipeline->stage_count()) job.pipeline->stage(job.stage).DropCall();
  if (status == failure_) {  // its text says it all
    std::move(*job.completion).Set(status);
    return;
  }
  const absl::Status annotated = Annotate(status, ContextOf(job));
  // A disagreement is known to all ranks, and the runner goes on. Any other failure may be this
  // rank's alone: the peers must not wait for what it will never launch.
  if (!job.run->disagreed()) Abort(annotated);
  std::move(*job.completion).Set(annotated);
}

void Channel::Abort(const absl::Status& reason) {
  if (!failure_.ok()) return;
  failure_ = reason;
  failed_at_ = clock_.Now();
  runner_.Abort(reason);
  // Each is answered here and never begins, so that nobody else answers for it (ONCE-1). The sink
  // may look at the queue: it sees only what is left.
  while (!queue_.empty()) {
    Job job = std::move(queue_.front());
    queue_.pop_front();
    Finish(std::move(job), reason);
  }
}

bool Channel::IsInFlight(BucketId bucket) const {
  return std::any_of(begun_.begin(), begun_.end(), [bucket](const Job& job) {
    return job.run.has_value() && job.run->layout().id == bucket;
  });
}

std::string Channel::DescribeCurrent() const {
  if (begun_.empty()) return "nothing";
  const Job& job = begun_.front();
  if (job.pipeline == nullptr) return Describe(job.operation);
  std::string text = job.run->plan().Describe(job.run->layout().id);
  if (job.stage < job.pipeline->stage_count()) {
    absl::StrAppend(&text, ", stage '", job.pipeline->stage(job.stage).name(), "'");
  }
  if (job.run->launch_count() > 0) {
    absl::StrAppend(&text, ", ", Describe(job.run->last_operation()));
  }
  return text;
}

bool Channel::Job::is_in_call() const {
  return pipeline != nullptr && stage < pipeline->stage_count() &&
         pipeline->stage(stage).has_call_under_way();
}

bool Channel::current_is_in_call() const { return !begun_.empty() && begun_.front().is_in_call(); }

absl::Time Channel::gives_up_at() const {
  const absl::Time at = failed_at_ + kLongestCallAfterAbort;
  const bool waits =
      !failure_.ok() && clock_.Now() < at &&
      std::any_of(begun_.begin(), begun_.end(), [](const Job& job) { return job.is_in_call(); });
  return waits ? at : absl::InfiniteFuture();
}

std::string Channel::DescribeOnDevice() const {
  if (on_device_.empty()) return "nothing";
  const OnDevice& oldest = on_device_.front();
  return absl::StrCat(oldest.plan->Describe(oldest.bucket), ", ", Describe(oldest.operation));
}

}  // namespace pelton
