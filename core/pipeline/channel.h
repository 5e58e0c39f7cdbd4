// Runs bucket pipelines, one after the other, on one operation runner.
#ifndef PELTON_CORE_PIPELINE_CHANNEL_H_
#define PELTON_CORE_PIPELINE_CHANNEL_H_

#include <deque>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/pipeline/completion.h"
#include "core/pipeline/operation_runner.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/stage.h"

namespace pelton {

// A state machine that its actor polls: buckets start in the order in which they are pushed, the
// next one when the last is complete (ORDER-1). While there is one channel, the scheduler's actor
// is its actor.
// Threads: its actor's turns. Owns: the runs, never pipelines or memory.
class Channel {
 public:
  Channel(OperationRunner& runner, const Clock& clock) : runner_(runner), clock_(clock) {}
  // Every completion still owed is answered with an error.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Queues `run`; `pipeline` is borrowed until the completion is answered.
  void Push(Pipeline& pipeline, BucketRun run, BucketCompletion completion);
  // Queues one operation of a user's call.
  void Push(const Operation& operation, absl::AnyInvocable<void(absl::Status) &&> done);

  // Moves on as far as it goes without waiting; true if anything moved. Blocks: never.
  bool Advance();
  bool idle() const { return !current_.has_value() && queue_.empty(); }

  // Aborts the runner and answers everything that has not begun with `reason`. What has begun ends
  // when its operations have. The first reason stays.
  void Abort(const absl::Status& reason);
  // Why nothing can run here any more; OK so far. Set by Abort and by every failure that the peers
  // do not know of by themselves.
  const absl::Status& failure() const { return failure_; }

  // The bucket whose operations are in flight; null if there is none.
  const BucketRun* current_run() const {
    return current_.has_value() && current_->run.has_value() ? &*current_->run : nullptr;
  }
  // Whether anything has begun and is not complete, and since when nothing was added to it.
  bool in_flight() const { return current_.has_value(); }
  absl::Time launched_at() const { return launched_at_; }
  // "bucket 3 (fc1.weight): exchange 'allreduce', allreduce #12 ..." of what is in flight.
  std::string DescribeCurrent() const;

 private:
  // A bucket's run through its pipeline, or a user's operation.
  struct Job {
    // Of a bucket.
    Pipeline* pipeline = nullptr;
    std::optional<BucketRun> run;
    std::optional<BucketCompletion> completion;
    size_t stage = 0;
    bool stage_started = false;
    absl::Status failure;  // waits for the operations in flight to end
    // Of a user's call.
    Operation operation;
    absl::AnyInvocable<void(absl::Status) &&> done;
    Completion launched;
  };

  absl::StatusOr<bool> Step(Job& job);
  absl::StatusOr<bool> StepBucket(Job& job);
  absl::StatusOr<bool> StepOperation(Job& job);
  void Finish(Job job, const absl::Status& status);
  void Break(const absl::Status& reason);
  void CancelQueued(const absl::Status& reason);

  OperationRunner& runner_;
  const Clock& clock_;
  HostStream stream_;
  std::deque<Job> queue_;
  std::optional<Job> current_;
  absl::Status failure_;
  absl::Time launched_at_ = absl::InfinitePast();
};

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_CHANNEL_H_
