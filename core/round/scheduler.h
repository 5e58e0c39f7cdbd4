// The actor of a model's rounds: releases buckets to the channel in order and accounts for them.
#ifndef PELTON_CORE_ROUND_SCHEDULER_H_
#define PELTON_CORE_ROUND_SCHEDULER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/actor/actor.h"
#include "core/actor/executor.h"
#include "core/actor/promise.h"
#include "core/actor/sync_policy.h"
#include "core/base/ids.h"
#include "core/base/long_wait.h"
#include "core/base/moving_deadline.h"
#include "core/pipeline/channel.h"
#include "core/pipeline/operation.h"
#include "core/plan/plan.h"
#include "core/round/plan_instance.h"
#include "core/round/round_sight.h"
#include "core/trace/trace.h"

namespace pelton {

// Releases buckets that are ready to the channel, in the plan's order, which is the same on all
// ranks, so that all release in the same order whatever order buckets become ready in (ORDER-1).
// Threads: the scheduler's turns. Owns: a bit per bucket.
class PlanOrderPolicy {
 public:
  // A round of `bucket_count` buckets begins.
  void Reset(int32_t bucket_count) {
    ready_.assign(static_cast<size_t>(bucket_count), false);
    next_ = 0;
  }
  void OnReady(BucketId bucket) { ready_[static_cast<size_t>(bucket.value())] = true; }
  // As if the bucket had not been ready; false: it was not, or has been released.
  bool TakeBack(BucketId bucket) {
    const auto i = static_cast<size_t>(bucket.value());
    if (i < next_ || !ready_[i]) return false;
    ready_[i] = false;
    return true;
  }
  // The next bucket to release, if it may be released already.
  std::optional<BucketId> Next() {
    if (next_ == ready_.size() || !ready_[next_]) return std::nullopt;
    return BucketId(static_cast<int32_t>(next_++));
  }
  // The bucket that everything waits for; nothing once all are released.
  std::optional<BucketId> Awaited() const {
    if (next_ == ready_.size()) return std::nullopt;
    return BucketId(static_cast<int32_t>(next_));
  }

 private:
  std::vector<bool> ready_;
  size_t next_ = 0;
};

// Which buckets of a round are complete.
// A round is complete when each of its buckets is, exactly once (ONCE-1).
// Threads: one at a time. Owns: the round's first error.
class RoundLedger {
 public:
  void Reset(int32_t bucket_count) {
    done_.assign(static_cast<size_t>(bucket_count), false);
    remaining_ = bucket_count;
    first_error_ = absl::OkStatus();
  }

  // Errors: Internal: no such bucket, or complete already.
  absl::Status Complete(BucketId bucket, const absl::Status& status) {
    const auto index = static_cast<size_t>(bucket.value());
    if (bucket.value() < 0 || index >= done_.size()) {
      return absl::InternalError(absl::StrCat("there is no bucket ", bucket.value()));
    }
    if (done_[index]) {
      return absl::InternalError(absl::StrCat("bucket ", bucket.value(), " is complete twice"));
    }
    done_[index] = true;
    --remaining_;
    first_error_.Update(status);
    return absl::OkStatus();
  }

  bool done(BucketId bucket) const { return done_[static_cast<size_t>(bucket.value())]; }
  bool complete() const { return remaining_ == 0; }
  int32_t complete_count() const { return static_cast<int32_t>(done_.size()) - remaining_; }
  const absl::Status& first_error() const { return first_error_; }

 private:
  std::vector<bool> done_;
  int32_t remaining_ = 0;
  absl::Status first_error_;
};

// A bucket's last tensor is ready.
struct BucketReady {
  BucketId bucket;
  Round round;
  PlanVersion version;  // of the plan that it is a bucket of (GEN-1)
};

// Answered when `round` is complete, with its first error; at `deadline` it is made to fail.
struct AwaitRound {
  Round round;
  absl::Time deadline;
  Promise<void> reply;
};

// Runs one operation between rounds, by which the ranks agree on the next plan.
struct RunOperation {
  Operation operation;
  Promise<void> reply;
};

// Replaces the plan between rounds; the answer gives the old one back.
struct InstallPlan {
  PlanInstanceLoan instance;
  Promise<void> reply;
};

// Answered when no device is at operations of earlier rounds any more.
struct AwaitDevice {
  Promise<void> reply;
};

// Takes back what this rank has told of `round`, as far as nothing was begun with it; answered with
// the buckets that are complete, once none is under way.
struct TakeBackMarks {
  Round round;
  Promise<std::vector<BucketId>> reply;
};

// Ends the current round and all later ones with `reason`.
struct AbortRounds {
  absl::Status reason;
};

// The watch has run out.
struct CheckDeadlines {};

// Answered with what the open round is at.
struct LookAtRound {
  Promise<RoundSight> reply;
};

// As failures of the round are told: "model 'net', rank 0, round 3"; those of all rounds without
// `round`.
std::string NameOfRound(absl::string_view model, Rank rank, std::optional<Round> round);

// Threads: a value, moved. Owns: its callback.
struct SchedulerOptions {
  std::string model_name;
  Rank rank;
  OperationRunner* runner = nullptr;  // outlives the actor
  absl::Duration operation_timeout;
  absl::AnyInvocable<void(const absl::Status&)> on_failure;
  // While true, only a waiter that has borrowed the actor polls it: its executor's own polls come
  // to nothing, so that the waiter finds it idle. May be null; outlives the actor.
  const internal::RealSync::Atomic<bool>* waiter_drives = nullptr;
  bool commits_state = false;     // see ModelRoundsOptions
  BucketTimes* times = nullptr;   // where it is on, told of each bucket; outlives the actor
  RangeViewer* viewer = nullptr;  // see ModelRoundsOptions
  const Standstill* standstill = nullptr;  // see ModelRoundsOptions
};

// Scheduler, channel and watchdog of one model in one actor: with one channel a message between
// them would only be a hop.
//
// The watchdog: an operation that is not done, or a bucket that is not ready while others are, for
// longer than the time-out, and a round that is not complete by its waiter's deadline, end the
// round: the runner is aborted and everyone gets a status that says who or what was missing
// (DEADLINE-1).
//
// The barrier before the buckets of a round in RoundMode::kCollecting ends when the last rank comes
// to stop. Only the waiter's deadline bounds it, because that has nothing to do with how long
// operations take.
//
// Deadlines stand still while `SchedulerOptions::standstill` says so: what is enforced is moved by
// as much, and time-outs of what is under way count without it.
//
// Threads: its turns, or those of the waiter that borrowed it. Owns: the channel; borrows the
// plan instance.
class BucketScheduler final : public PollingActor, private CompletionSink {
 public:
  BucketScheduler(SchedulerOptions options, PlanInstanceLoan instance);

  void Handle(BucketReady message);
  void Handle(AwaitRound message);
  void Handle(RunOperation message);
  void Handle(InstallPlan message);
  void Handle(AwaitDevice message);
  void Handle(TakeBackMarks message);
  void Handle(AbortRounds message);
  void Handle(CheckDeadlines message);
  void Handle(LookAtRound message);

  PollResult Poll() override;
  absl::Status OnStart() override;
  void OnStop(const absl::Status& why) override;

  // For a waiter that has borrowed the actor and polls it itself.
  void set_driven_by_waiter(bool driven) { driven_by_waiter_ = driven; }

 private:
  void OnBucketComplete(BucketId bucket, Round round, const absl::Status& status) override;

  void BeginRound(Round round);
  void ReleaseReady();
  // Has all ranks come to a barrier before what follows, in a round that collects.
  void Gather();
  // Ends every bucket of the round that has not ended, and all later rounds.
  void Fail(const absl::Status& reason);
  void FailRest(const absl::Status& reason);
  // Until what was in flight has ended, or some time has passed.
  void DrainAborted();
  // Closes the round if it is complete, and answers who waits for a device that has come to its
  // end.
  void Settle();
  void SettleRound();
  void AnswerTakenBack();
  absl::Status FailureOnDevice() const;
  // An error with model, rank and round, and what they were at: once.
  absl::Status Named(const absl::Status& status, Round round, absl::string_view doing = "") const;
  void Report(const absl::Status& status);
  bool under_way() const { return ready_count_ > 0 || waiter_.has_value(); }

  // Moves every deadline by as long as they have stood still since the last call.
  void CatchUp(absl::Time now);
  absl::Time NextDeadline() const;
  void ArmWatch(absl::Time deadline);
  void EnforceDeadlines(absl::Time now);
  // Whether this rank has marked all that everything waits for, and the message of that is to come.
  bool MarkIsUnderWay() const;
  // Says of an operation that takes long which ranks it waits for.
  void TellOfStall(absl::Time now);
  absl::Status Overdue() const;
  std::string DescribeWork() const;
  std::string DescribeMissing() const;
  // Which tensors of `bucket` this rank has yet to mark, if it has any.
  std::string DescribeUnmarked(BucketId bucket) const;
  std::string NameOf(std::optional<Round> round) const {
    return NameOfRound(options_.model_name, options_.rank, round);
  }

  SchedulerOptions options_;
  PlanInstance* instance_;
  PlanOrderPolicy policy_;
  RoundLedger ledger_;
  Round round_;               // that is open
  absl::Status last_status_;  // of the round before
  std::optional<AwaitRound> waiter_;
  absl::Time waited_since_ = absl::InfiniteFuture();  // by `waiter_`
  std::vector<AwaitDevice> device_waiters_;
  std::optional<TakeBackMarks> taking_back_;
  int32_t ready_count_ = 0;    // buckets, in the open round
  bool is_gathering_ = false;  // at the barrier of a round that collects
  absl::Time progress_at_ = absl::InfinitePast();
  Timer watch_;
  absl::Time watch_at_ = absl::InfiniteFuture();
  absl::Duration stood_;  // that deadlines have been moved by
  bool driven_by_waiter_ = false;
  bool reported_ = false;  // the failure that ended all
  StallReport stall_;
  // Last: what it still owes at its end it answers to all of the above.
  std::optional<Channel> channel_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_SCHEDULER_H_
