#include "core/round/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "core/actor/context.h"
#include "core/actor/wait_hook.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/plan/round_mode.h"
#include "core/trace/trace.h"

namespace pelton {
namespace {

// Enough to find the culprit; a report stays one line.
constexpr size_t kTensorsNamed = 8;
// How long the end waits for what an abort has not ended yet, and how often where time stands
// still.
constexpr absl::Duration kDrainTime = absl::Seconds(2);
constexpr int kMostLooks = 2000;
constexpr absl::Duration kLookInterval = absl::Milliseconds(1);
// How often deadlines that stand still are looked at.
constexpr absl::Duration kStandingLook = absl::Milliseconds(10);

}  // namespace

BucketScheduler::BucketScheduler(SchedulerOptions options, PlanInstanceLoan instance)
    : options_(std::move(options)), instance_(instance.get()) {}

absl::Status BucketScheduler::OnStart() {
  channel_.emplace(*options_.runner, context().executor().clock(), options_.viewer);
  BeginRound(instance_->tracker->round());
  return absl::OkStatus();
}

void BucketScheduler::OnStop(const absl::Status& why) {
  watch_.Cancel();
  // A turn has failed. First, because what it threw may be thrown again by what follows.
  const bool has_failed = !why.ok() && !absl::IsDeadlineExceeded(why);
  if (has_failed) Report(Named(why, round_));
  if (!under_way() && channel_->idle() && !channel_->device_is_busy()) return;
  reported_ |= why.ok() || has_failed;  // its owner has ended it and knows
  if (why.ok()) {
    Fail(absl::CancelledError("the model's rounds have ended"));
  } else if (absl::IsDeadlineExceeded(why)) {
    Fail(absl::CancelledError(absl::StrCat(
        NameOf(round_), ": the model was destroyed in the middle of a round, which the other ",
        "ranks did not complete in time; end the round on all ranks before (where it ",
        "averages beside training, by abort()), or destroy it on all of them")));
  } else {
    Fail(why);
  }
  DrainAborted();
  Settle();
  // The bucket whose turn has thrown may have no end of its own, so that the round has none.
  if (has_failed && waiter_.has_value()) waiter_->reply.Set(Named(why, round_));
}

// An abort ends operations only when the peers have let go of their memory, which may take some
// looks. The memory is the model's, and goes with it (OWN-1).
void BucketScheduler::DrainAborted() {
  const bool may_block = WaitHook::MayBlock();
  const absl::Time until = WaitClock().Now() + kDrainTime;
  // A park returns at once while the abort is on its way to the peers: looks say nothing of time.
  for (int look = 0; may_block ? WaitClock().Now() < until : look < kMostLooks; ++look) {
    options_.runner->Progress();
    channel_->Advance();
    if (!channel_->in_flight() && !channel_->device_is_busy()) return;
    if (may_block) options_.runner->Park(WaitClock().Now() + kLookInterval);
  }
}

void BucketScheduler::BeginRound(Round round) {
  const auto bucket_count = static_cast<int32_t>(instance_->plan.buckets().size());
  round_ = round;
  ready_count_ = 0;
  ledger_.Reset(bucket_count);
  policy_.Reset(bucket_count);
}

void BucketScheduler::Handle(BucketReady message) {
  const absl::Time now = context().Now();
  CatchUp(now);
  if (message.version != instance_->plan.version()) return;             // GEN-1
  if (message.round != round_ || ledger_.done(message.bucket)) return;  // that round has failed
  progress_at_ = now;
  if (ready_count_++ == 0) {
    ArmWatch(progress_at_ + options_.operation_timeout);
    if (instance_->tracker->mode() == RoundMode::kCollecting) Gather();
  }
  Tracer::Get().Count("bucket ready", 1, message.bucket.value(), message.round.value());
  if (options_.times != nullptr) options_.times->Ready(message.bucket, progress_at_);
  policy_.OnReady(message.bucket);
  ReleaseReady();
  Settle();
}

// The channel begins nothing behind an operation of this kind before that is done.
void BucketScheduler::Gather() {
  if (!channel_->failure().ok()) return;
  is_gathering_ = true;
  channel_->Push(Operation(), [this](absl::Status status) {
    is_gathering_ = false;
    // Where ranks have launched other operations they would go on, and collect too early. Any other
    // failure has ended the channel already, or is what ends it: then it answers for all buckets.
    if (absl::IsInvalidArgument(status) && channel_->failure().ok()) return Fail(status);
    if (!status.ok()) return;
    progress_at_ = context().Now();
    ArmWatch(progress_at_ + options_.operation_timeout);
  });
}

void BucketScheduler::ReleaseReady() {
  while (const std::optional<BucketId> bucket = policy_.Next()) {
    Pipeline& pipeline = instance_->pipelines[static_cast<size_t>(bucket->value())];
    BucketCompletion completion(*this, *bucket, round_);
    if (!channel_->failure().ok()) {
      std::move(completion).Set(channel_->failure());
    } else if (!pipeline.RunsIn(round_)) {
      std::move(completion).Set(absl::OkStatus());
    } else {
      BucketRun run(instance_->plan, instance_->plan.bucket(*bucket), *instance_->storage,
                    *instance_->tracker, *options_.runner, round_);
      if (options_.commits_state) pipeline.KeepState();
      pipeline.KeepUnused(run);
      channel_->Push(pipeline, std::move(run), std::move(completion));
    }
  }
}

void BucketScheduler::OnBucketComplete(BucketId bucket, Round round, const absl::Status& status) {
  PELTON_CHECK(round == round_) << "a completion of round " << round << " in round " << round_;
  PELTON_CHECK_OK(ledger_.Complete(bucket, status));  // ONCE-1
  if (options_.times != nullptr && options_.times->on()) {
    options_.times->Done(bucket, context().Now());
  }
  Tracer::Get().Count("bucket complete", status.ok() ? 1 : 0, bucket.value(), round.value());
}

void BucketScheduler::Settle() {
  SettleRound();
  if (!channel_->failure().ok()) ArmWatch(NextDeadline());
  // The round that it belongs to is complete: nobody else would say so.
  if (channel_->failed_on_device().has_value() && !under_way()) Report(FailureOnDevice());
  AnswerTakenBack();
  if (channel_->device_is_busy()) return;
  for (AwaitDevice& waiter : std::exchange(device_waiters_, {})) {
    waiter.reply.Set(FailureOnDevice());
  }
}

void BucketScheduler::SettleRound() {
  if (under_way() && !channel_->failure().ok()) FailRest(channel_->failure());
  if (!under_way() || !ledger_.complete()) return;
  // Every bucket has ended, so no stage is at its state any more: all of it takes effect, or none
  // (COMMIT-1).
  for (Pipeline& pipeline : instance_->pipelines) {
    ledger_.first_error().ok() ? pipeline.CommitState() : pipeline.RestoreState();
  }
  last_status_ = Named(ledger_.first_error(), round_);
  if (!last_status_.ok()) Report(last_status_);
  BeginRound(Round(round_.value() + 1));
  if (std::optional<AwaitRound> waiter = std::exchange(waiter_, std::nullopt)) {
    waiter->reply.Set(last_status_);
  }
}

// Its round may have closed.
absl::Status BucketScheduler::FailureOnDevice() const {
  return Named(channel_->failure(), channel_->failed_on_device().value_or(round_));
}

// A waiter that gave up has said where it was.
absl::Status BucketScheduler::Named(const absl::Status& status, Round round,
                                    absl::string_view doing) const {
  if (status.ok() || absl::StartsWith(status.message(), NameOf(std::nullopt))) return status;
  return Annotate(status, absl::StrCat(NameOf(round), doing));
}

void BucketScheduler::Report(const absl::Status& status) {
  // A failure of the runner fails every later round too, with the same words.
  if (reported_ || options_.on_failure == nullptr) return;
  reported_ = !channel_->failure().ok();
  options_.on_failure(status);
}

void BucketScheduler::Handle(AwaitRound message) {
  const absl::Time now = context().Now();
  CatchUp(now);
  if (message.round.value() + 1 == round_.value()) return message.reply.Set(last_status_);
  if (message.round != round_ || waiter_.has_value()) {
    return message.reply.Set(absl::FailedPreconditionError(
        absl::StrCat(NameOf(round_), ": round ", message.round.value(),
                     waiter_.has_value() ? " is waited for already" : " is not open")));
  }
  waited_since_ = now;
  if (ready_count_ == 0) progress_at_ = waited_since_;
  ArmWatch(std::min(message.deadline, progress_at_ + options_.operation_timeout));
  waiter_.emplace(std::move(message));
  Settle();
}

void BucketScheduler::Handle(RunOperation message) {
  if (!channel_->failure().ok()) return message.reply.Set(Named(channel_->failure(), round_));
  if (ready_count_ > 0 || !channel_->idle()) {
    return message.reply.Set(absl::FailedPreconditionError(
        absl::StrCat(NameOf(round_), ": an operation was asked for while the round is under way")));
  }
  const absl::Time now = context().Now();
  CatchUp(now);
  ArmWatch(now + options_.operation_timeout);
  channel_->Push(message.operation,
                 [this, reply = std::move(message.reply)](absl::Status status) mutable {
                   status = Named(status, round_, ": agreeing with rank 0 on the next plan");
                   // No round ends, whose end would report it.
                   if (!status.ok() && !channel_->failure().ok()) Report(status);
                   reply.Set(std::move(status));
                 });
}

void BucketScheduler::Handle(AwaitDevice message) {
  device_waiters_.push_back(std::move(message));
  Settle();
}

void BucketScheduler::Handle(InstallPlan message) {
  if (under_way() || !channel_->idle() || channel_->device_is_busy()) {
    return message.reply.Set(absl::FailedPreconditionError(
        absl::StrCat(NameOf(round_), ": the plan changes only between rounds")));
  }
  instance_ = message.instance.get();
  BeginRound(round_);
  message.reply.Set(absl::OkStatus());
}

void BucketScheduler::Handle(TakeBackMarks message) {
  if (message.round == round_) {
    for (const BucketLayout& bucket : instance_->plan.buckets()) {
      if (policy_.TakeBack(bucket.id)) --ready_count_;
    }
  }
  taking_back_.emplace(std::move(message));
  Settle();
}

// A bucket that was released goes its way: the peers have begun with it, or will.
void BucketScheduler::AnswerTakenBack() {
  if (!taking_back_.has_value() || !channel_->idle()) return;
  TakeBackMarks asked = *std::exchange(taking_back_, std::nullopt);
  if (!channel_->failure().ok()) return asked.reply.Set(Named(channel_->failure(), round_));
  // A round whose buckets are all complete has closed, whether or not anybody has waited for it.
  const bool has_closed = asked.round.value() + 1 == round_.value();
  if (has_closed && !last_status_.ok()) return asked.reply.Set(last_status_);
  if (!has_closed && !ledger_.first_error().ok()) return asked.reply.Set(ledger_.first_error());
  std::vector<BucketId> complete;
  for (const BucketLayout& bucket : instance_->plan.buckets()) {
    if (has_closed || ledger_.done(bucket.id)) complete.push_back(bucket.id);
  }
  asked.reply.Set(std::move(complete));
}

void BucketScheduler::Handle(AbortRounds message) {
  Fail(message.reason);
  Settle();
}

PollResult BucketScheduler::Poll() {
  const bool leave_it = options_.waiter_drives != nullptr && !driven_by_waiter_ &&
                        options_.waiter_drives->load(std::memory_order_relaxed);
  const auto has_nothing = [this] { return channel_->idle() && !channel_->device_is_busy(); };
  if (leave_it || has_nothing()) return PollResult::kNothingToDo;
  const absl::Time now = context().Now();
  CatchUp(now);
  const bool progressed = options_.runner->Progress();
  const bool moved = channel_->Advance() || progressed;
  if (channel_->idle()) progress_at_ = context().Now();  // a stage may have computed
  Settle();
  if (moved) return PollResult::kMoved;
  EnforceDeadlines(now);
  TellOfStall(now);
  return has_nothing() ? PollResult::kNothingToDo : PollResult::kIdle;
}

void BucketScheduler::Fail(const absl::Status& reason) {
  channel_->Abort(reason);
  FailRest(reason);
}

void BucketScheduler::FailRest(const absl::Status& reason) {
  for (const BucketLayout& bucket : instance_->plan.buckets()) {
    // What has begun answers for itself, once its memory is the runner's no longer (OWN-1).
    if (channel_->IsInFlight(bucket.id)) continue;
    if (!ledger_.done(bucket.id)) OnBucketComplete(bucket.id, round_, reason);
  }
}

void BucketScheduler::CatchUp(absl::Time now) {
  if (options_.standstill == nullptr) return;
  const absl::Duration stood = options_.standstill->Total(now);
  const absl::Duration since = stood - std::exchange(stood_, stood);
  if (since <= absl::ZeroDuration()) return;
  progress_at_ += since;
  if (waiter_.has_value()) waiter_->deadline += since;
  channel_->MoveTimes(since);
}

absl::Time BucketScheduler::NextDeadline() const {
  absl::Time deadline = absl::InfiniteFuture();
  // After a failure the abort is what ends things, but for calls; the poll of that turn gives up.
  if (!channel_->failure().ok()) return channel_->gives_up_at();
  if (waiter_.has_value()) deadline = waiter_->deadline;
  if (channel_->device_is_busy()) {
    deadline = std::min(deadline, channel_->on_device_since() + options_.operation_timeout);
  }
  if (is_gathering_) return deadline;
  if (channel_->in_flight()) {
    return std::min(deadline, channel_->launched_at() + options_.operation_timeout);
  }
  if (under_way()) deadline = std::min(deadline, progress_at_ + options_.operation_timeout);
  return deadline;
}

void BucketScheduler::ArmWatch(absl::Time deadline) {
  // Deadlines mostly grow, so the timer that is there runs out first and is set anew then.
  if (deadline >= watch_at_) return;
  watch_.Cancel();
  watch_at_ = deadline;
  watch_ = context().SendAfter(*this, deadline - context().Now(), CheckDeadlines{});
}

void BucketScheduler::Handle(CheckDeadlines) {
  watch_at_ = absl::InfiniteFuture();
  const absl::Time now = context().Now();
  EnforceDeadlines(now);
  const absl::Time next = NextDeadline();
  // A deadline that stands still is as near at each look, be that as near as it may; one that has
  // passed waits for a message.
  const bool stands = options_.standstill != nullptr && options_.standstill->stands();
  ArmWatch(stands || next <= now ? std::max(next, now + kStandingLook) : next);
}

void BucketScheduler::EnforceDeadlines(absl::Time now) {
  CatchUp(now);
  if (now < NextDeadline()) return;
  const bool waiter_is_late = waiter_.has_value() && now >= waiter_->deadline;
  if (!waiter_is_late && MarkIsUnderWay()) return;
  // Asked before there is progress: with it may come the end that others, whose deadline it was,
  // too, have made, after which nobody is missing any more.
  const absl::Status overdue = Overdue();
  // What has ended in the meantime, in whichever way, is not overdue.
  if (channel_->in_flight() || channel_->device_is_busy()) {
    options_.runner->Progress();
    if (channel_->Advance()) return Settle();
  }
  Fail(overdue);
  if (channel_->device_is_busy()) channel_->Advance();  // the abort has ended what it was at
  Settle();
}

// The watch's message overtakes those of marks.
bool BucketScheduler::MarkIsUnderWay() const {
  const std::optional<BucketId> bucket = policy_.Awaited();
  return bucket.has_value() && under_way() && !channel_->in_flight() &&
         !channel_->device_is_busy() && channel_->failure().ok() &&
         instance_->tracker->UnmarkedSlotsOf(*bucket, round_).empty();
}

void BucketScheduler::TellOfStall(absl::Time now) {
  // Virtual time is nobody's to wait for.
  if (!channel_->in_flight() || WaitHook::Current() != nullptr) return;
  stall_.Look(channel_->launched_at(), now, [this](absl::string_view waited) {
    return absl::StrCat(NameOf(round_), ": ", DescribeWork(), " has taken ", waited, "; ",
                        DescribeMissing());
  });
}

std::string BucketScheduler::DescribeWork() const {
  if (is_gathering_) return "the barrier at which every rank's own rounds have ended";
  return channel_->in_flight() ? channel_->DescribeCurrent() : channel_->DescribeOnDevice();
}

std::string BucketScheduler::DescribeMissing() const {
  if (channel_->current_is_in_call()) return "it has not returned on this rank";
  const std::vector<Rank> missing = options_.runner->Missing();
  if (missing.empty()) return "every rank has arrived";
  return absl::StrCat("waiting for rank ",
                      absl::StrJoin(missing, ", ", [](std::string* out, Rank rank) {
                        absl::StrAppend(out, rank.value());
                      }));
}

absl::Status BucketScheduler::Overdue() const {
  if (channel_->in_flight() || channel_->device_is_busy()) {
    return absl::DeadlineExceededError(
        absl::StrCat(DescribeWork(), " is not done in time; ", DescribeMissing()));
  }
  const std::optional<BucketId> bucket = policy_.Awaited();
  if (!bucket.has_value()) return absl::DeadlineExceededError("the round is not complete in time");
  return absl::DeadlineExceededError(absl::StrCat(
      instance_->plan.Describe(*bucket), " is not ready in time: ", DescribeUnmarked(*bucket)));
}

std::string BucketScheduler::DescribeUnmarked(BucketId bucket) const {
  const std::vector<SlotId> unmarked = instance_->tracker->UnmarkedSlotsOf(bucket, round_);
  if (unmarked.empty()) return "its last tensor has only just been marked ready on this rank";
  std::string names;
  for (size_t i = 0; i < unmarked.size() && i < kTensorsNamed; ++i) {
    absl::StrAppend(&names, i == 0 ? "'" : ", '", instance_->plan.tensor(unmarked[i]).name, "'");
  }
  if (unmarked.size() > kTensorsNamed) {
    absl::StrAppend(&names, " and ", unmarked.size() - kTensorsNamed, " more");
  }
  return absl::StrCat("on this rank tensor ", names, " has not been marked ready");
}

void BucketScheduler::Handle(LookAtRound message) {
  RoundSight sight;
  sight.now = context().Now();
  sight.round = round_;
  sight.bucket_count = static_cast<int32_t>(instance_->plan.buckets().size());
  sight.ready_count = ready_count_;
  sight.complete_count = ledger_.complete_count();
  sight.moved_at = progress_at_;
  if (waiter_.has_value()) sight.waited_since = waited_since_;
  if (channel_->in_flight() || channel_->device_is_busy()) {
    sight.work = DescribeWork();
    sight.work_since =
        channel_->in_flight() ? channel_->launched_at() : channel_->on_device_since();
    sight.missing = options_.runner->Missing();
  }
  if (const std::optional<BucketId> bucket = policy_.Awaited(); bucket.has_value() && under_way()) {
    sight.awaited =
        absl::StrCat(instance_->plan.Describe(*bucket), ": ", DescribeUnmarked(*bucket));
  }
  message.reply.Set(std::move(sight));
}

std::string NameOfRound(absl::string_view model, Rank rank, std::optional<Round> round) {
  std::string name = absl::StrCat("model '", model, "', rank ", rank.value());
  if (round.has_value()) absl::StrAppend(&name, ", round ", round->value());
  return name;
}

}  // namespace pelton
