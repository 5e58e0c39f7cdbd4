// Runs bucket pipelines, one after the other, on one operation runner.
#ifndef PELTON_CORE_PIPELINE_CHANNEL_H_
#define PELTON_CORE_PIPELINE_CHANNEL_H_

#include <deque>
#include <list>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/pipeline.h"
#include "core/trace/trace.h"

namespace pelton {

// Is told of buckets that are complete.
// Threads: the channel's. Owns: what its subclass says.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  // Once per BucketCompletion. The bucket's memory is the runner's no longer.
  virtual void OnBucketComplete(BucketId bucket, Round round, const absl::Status& status) = 0;
};

// Answers exactly once (ONCE-1): with what it is given, or, when dropped without, with an error.
// Threads: one at a time. Owns: the duty to answer; the sink outlives it.
class BucketCompletion {
 public:
  BucketCompletion(CompletionSink& sink, BucketId bucket, Round round)
      : sink_(&sink), bucket_(bucket), round_(round) {}
  BucketCompletion(BucketCompletion&& other) noexcept
      : sink_(std::exchange(other.sink_, nullptr)), bucket_(other.bucket_), round_(other.round_) {}
  BucketCompletion& operator=(BucketCompletion&&) = delete;
  ~BucketCompletion() {
    if (sink_ != nullptr) Answer(absl::InternalError("its completion was dropped"));
  }

  void Set(const absl::Status& status) && { Answer(status); }

 private:
  void Answer(const absl::Status& status) {
    std::exchange(sink_, nullptr)->OnBucketComplete(bucket_, round_, status);
  }

  CompletionSink* sink_;
  BucketId bucket_;
  Round round_;
};

// A state machine that its actor polls: buckets start in the order in which they are pushed, the
// next one when the last has launched everything that it will (ORDER-1), so that the wire does not
// rest while this rank works on what the last operation brought. While there is one channel, the
// scheduler's actor is its actor.
// Threads: its actor's turns. Owns: the runs, never pipelines or memory.
class Channel {
 public:
  // `viewer` is shown each bucket, waiting and running; it may be null, and outlives the channel.
  Channel(OperationRunner& runner, const Clock& clock, RangeViewer* viewer = nullptr)
      : runner_(runner), clock_(clock), viewer_(viewer) {}
  // Every completion still owed is answered with an error.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Queues `run`; `pipeline` is borrowed until the completion is answered.
  void Push(Pipeline& pipeline, BucketRun&& run, BucketCompletion completion);
  // Queues one operation of a user's call.
  void Push(const Operation& operation, absl::AnyInvocable<void(absl::Status) &&> done);

  // Moves on as far as it goes without waiting; true if anything moved. Blocks: never.
  bool Advance();
  bool idle() const { return begun_.empty() && queue_.empty(); }

  // Aborts the runner and answers everything that has not begun with `reason`. What has begun ends
  // when its operations have, whatever else its stage waits for; but a call of a BlockingStage,
  // which works on the bucket, is waited for as long as kLongestCallAfterAbort. The first reason
  // stays.
  void Abort(const absl::Status& reason);
  // Why nothing can run here any more; OK so far. Set by Abort and by every failure that the peers
  // do not know of by themselves; nothing is queued from then on.
  const absl::Status& failure() const { return failure_; }

  // Whether the bucket has begun and is not complete.
  bool IsInFlight(BucketId bucket) const;
  // Whether anything has begun and is not complete, and since when nothing was added to it.
  bool in_flight() const { return !begun_.empty(); }
  absl::Time launched_at() const { return launched_at_; }
  // As if all of it had been launched, and put on the device, so much later.
  void MoveTimes(absl::Duration by);
  // "bucket 3 (fc1.weight): stage 'allreduce', allreduce #12 ..." of the oldest in flight.
  std::string DescribeCurrent() const;
  // Whether that one waits for a call on this rank (BlockingStage), and so for no other rank.
  bool current_is_in_call() const;
  // After an abort, when the calls that still work on buckets are waited for no longer; infinite
  // where there are none, or that time has passed.
  absl::Time gives_up_at() const;

  // A bucket on a device counts as complete when its operations are in the order of the device's
  // stream. Whether the device still runs operations of such buckets; since when the oldest of
  // these buckets has been there; and what a report says of it. Advance finds out when they end.
  bool device_is_busy() const { return !on_device_.empty(); }
  absl::Time on_device_since() const { return on_device_.front().since; }
  std::string DescribeOnDevice() const;
  // The round of the first one that has failed, which no bucket's completion says.
  std::optional<Round> failed_on_device() const { return failed_on_device_; }

 private:
  // A bucket's run through its pipeline, or a user's operation.
  struct Job {
    // Of a bucket.
    Pipeline* pipeline = nullptr;
    std::optional<BucketRun> run;
    std::optional<BucketCompletion> completion;
    size_t stage = 0;
    bool stage_started = false;
    uint64_t launches_before_stage = 0;
    absl::Status failure;                  // waits for the operations in flight to end
    absl::AnyInvocable<void()> end_range;  // that a viewer is shown; null: none
    // Of a user's call.
    Operation operation;
    absl::AnyInvocable<void(absl::Status) &&> done;
    Completion launched;

    uint64_t launch_count() const {
      return run.has_value() ? run->launch_count() : launched.ticket;
    }
    // Whether the next job's operations may follow.
    bool has_launched_all() const;
    bool is_in_call() const;
    bool was_in_call = false;  // at the last look
  };

  // The last operation of a bucket that is complete in the order of a device's stream. The plan
  // stays while there is one.
  struct OnDevice {
    Completion completion;
    Operation operation;
    const Plan* plan;
    BucketId bucket;
    Round round;
    absl::Time since;
  };

  // How long a failed bucket waits for a call that still works on it. Most return by then, so that
  // nobody works on a bucket any more when its round has ended; one that hangs holds up nobody for
  // long.
  static constexpr absl::Duration kLongestCallAfterAbort = absl::Seconds(1);
  // Two keep the wire busy; more would only hold memory longer.
  static constexpr size_t kJobsAtOnce = 2;

  // Ends the range that a viewer is shown of a bucket, and begins the next.
  void Show(Job& job, absl::string_view what) const;
  bool CanBegin() const;
  bool AdvanceDevice();
  absl::StatusOr<bool> Step(Job& job);
  absl::StatusOr<bool> StepBucket(Job& job);
  absl::StatusOr<bool> RunStage(Job& job);
  // After an abort, of a bucket whose stage is not done: whether it ends so.
  bool GivesUp(Job& job);
  absl::StatusOr<bool> StepOperation(Job& job);
  void Finish(Job job, const absl::Status& status);

  OperationRunner& runner_;
  const Clock& clock_;
  RangeViewer* const viewer_;
  HostStream stream_;
  std::list<Job> queue_;
  std::list<Job> begun_;  // in the order of their launches
  std::deque<OnDevice> on_device_;
  std::optional<Round> failed_on_device_;
  absl::Status failure_;
  absl::Time failed_at_;
  absl::Time launched_at_ = absl::InfinitePast();
};

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_CHANNEL_H_
