#include "backend/averaging_loop.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/actor/actor.h"
#include "core/actor/borrow.h"
#include "core/actor/context.h"
#include "core/actor/executor.h"
#include "core/actor/monitor.h"
#include "core/actor/spawn.h"
#include "core/actor/wait_hook.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"
#include "core/plan/round_mode.h"
#include "core/round/round_sight.h"

namespace pelton {
namespace {

constexpr char kStopTensor[] = "averaging: wish to stop";
// The loop itself answers at the deadline, with a better text than a future has.
constexpr absl::Duration kAnswerGrace = absl::Seconds(2);
// Less than the grace: what a look finds goes into that text.
constexpr absl::Duration kLookPatience = absl::Seconds(1);
// A rank alone would do nothing but average.
constexpr absl::Duration kLeastPause = absl::Microseconds(100);

struct ClaimWeights {
  uint64_t number;
  Promise<void> reply;
};
// Sent when a claim's caller has given up waiting.
struct WithdrawClaim {
  uint64_t number;
};
struct ReleaseWeights {};
struct StopAveraging {
  absl::Time deadline;
  Promise<void> reply;
};
struct ResumeAveraging {
  Promise<void> reply;
};
struct BeginRound {};
struct CheckStops {};

}  // namespace

// Threads: its turns. Owns: the promises that it owes.
class AveragingActor final : public Actor {
 public:
  AveragingActor(ModelRounds* rounds, AveragingLoopOptions options, std::optional<SlotId> stop_slot)
      : rounds_(*rounds), options_(std::move(options)), stop_slot_(stop_slot) {}

  // A turn that has thrown ends the rounds of all ranks with the reason, also where no parent is
  // told of it.
  void OnStop(const absl::Status& why) override {
    if (!why.ok() && failure_.ok()) FailEverywhere(Annotate(why, "averaging"));
  }

  void Handle(ClaimWeights message) {
    if (message.reply.cancelled()) return;  // nobody would release it
    if (!std::exchange(is_claimed_, true)) claim_ = message.number;
    message.reply.Set(failure_);
  }

  void Handle(WithdrawClaim message) {
    if (is_claimed_ && claim_ == message.number) Handle(ReleaseWeights{});
  }

  void Handle(ReleaseWeights) {
    is_claimed_ = false;
    Advance();
  }

  void Handle(StopAveraging message) {
    is_claimed_ = false;
    if (phase_ == Phase::kStopped) return message.reply.Set(failure_);
    wants_to_stop_ = true;
    context().SendAfter(*this, message.deadline - context().Now(), CheckStops{});
    stops_.push_back(std::move(message));
    // A pause would only keep the others waiting.
    if (phase_ == Phase::kPausing) phase_ = Phase::kSnapshotDue;
    Advance();
  }

  void Handle(ResumeAveraging message) {
    message.reply.Set(failure_);
    if (!failure_.ok()) return;
    wants_to_stop_ = false;
    AnswerStops(absl::CancelledError("averaging: resumed before all ranks had asked to stop"));
    if (phase_ != Phase::kStopped) return;
    phase_ = Phase::kSnapshotDue;
    Advance();
  }

  void Handle(BeginRound) {
    if (phase_ != Phase::kPausing) return;
    phase_ = Phase::kSnapshotDue;
    Advance();
  }

  void Handle(CheckStops) {
    const absl::Time now = context().Now();
    const auto is_in_time = [now](const StopAveraging& stop) { return stop.deadline > now; };
    const auto first = std::stable_partition(stops_.begin(), stops_.end(), is_in_time);
    std::vector<StopAveraging> late(std::make_move_iterator(first),
                                    std::make_move_iterator(stops_.end()));
    stops_.erase(first, stops_.end());
    if (late.empty()) return;
    if (options_.ranks_share_rounds) {
      for (StopAveraging& stop : late) stop.reply.Set(Overdue());
      return;
    }
    context().Then(rounds_.RequestLook(now + kLookPatience),
                   [this, late = std::move(late)](absl::StatusOr<RoundSight> sight) mutable {
                     for (StopAveraging& stop : late) stop.reply.Set(OverdueAlone(sight));
                   });
  }

 private:
  enum class Phase {
    kStopped,      // no round will come; with a failure: ever
    kPausing,      // a timer will begin a round
    kSnapshotDue,  // a round begins when the weights are free
    kInFlight,     // communication is under way
    kResultDue,    // the result is added when the weights are free
  };

  // Does what is due, if the weights are free.
  void Advance() {
    if (is_claimed_) return;
    if (phase_ == Phase::kResultDue) AddResult();
    if (phase_ == Phase::kSnapshotDue) TakeSnapshot();
  }

  void TakeSnapshot() {
    asked_ = wants_to_stop_;
    if (absl::Status status = Call([this] { return BeginAlone(); }); !status.ok()) {
      return Fail(Annotate(status, "averaging"));
    }
    if (absl::Status status = Call([this] { return MarkAll(); }); !status.ok()) {
      return FailEverywhere(status);
    }
    phase_ = Phase::kInFlight;
    // The last of rounds that ranks do not share begins when every rank has been asked to stop.
    // That may take any time, so this wait has no deadline; the caller of the stop has one of its
    // own.
    const absl::Time deadline =
        is_last_alone() ? absl::InfiniteFuture() : context().Now() + options_.round_timeout;
    context().Then(rounds_.RoundDone(deadline),
                   [this](absl::Status status) { OnRoundDone(std::move(status)); });
  }

  // Whether the round under way is this rank's last one, of those that ranks do not share.
  bool is_last_alone() const { return !options_.ranks_share_rounds && asked_; }

  absl::Status BeginAlone() {
    if (options_.ranks_share_rounds) return absl::OkStatus();
    rounds_.SetMode(asked_ ? RoundMode::kCollecting : RoundMode::kTraining);
    return options_.failure == nullptr ? absl::OkStatus() : options_.failure();
  }

  // An exception in a callback becomes a status with the exception's text, and is treated like a
  // status that the callback returns.
  absl::Status Call(absl::AnyInvocable<absl::Status()> body) {
    try {
      return body();
    } catch (const std::exception& error) {
      return absl::InternalError(absl::StrCat("averaging: exception: ", error.what()));
    } catch (...) {
      return absl::InternalError("averaging: exception of unknown type");
    }
  }

  absl::Status MarkAll() {
    for (size_t i = 0; i < rounds_.plan().tensors().size(); ++i) {
      const SlotId slot(static_cast<int32_t>(i));
      std::byte* const target = rounds_.DataOf(slot);
      if (slot == stop_slot_) {
        const float wish = asked_ ? 1 : 0;
        std::memcpy(target, &wish, sizeof(wish));
      } else {
        RETURN_IF_ERROR(options_.copy_in(slot, target));
      }
      RETURN_IF_ERROR(rounds_.MarkReady(slot));
    }
    return rounds_.EndRound();
  }

  void OnRoundDone(absl::Status status) {
    status = rounds_.CloseRound(std::move(status));
    if (!status.ok()) return Fail(Annotate(status, "averaging"));
    phase_ = Phase::kResultDue;
    Advance();
  }

  absl::Status AddAll(float* difference) {
    for (size_t i = 0; i < rounds_.plan().tensors().size(); ++i) {
      const SlotId slot(static_cast<int32_t>(i));
      const std::byte* const result = rounds_.ResultOf(slot).data;
      if (slot == stop_slot_) {
        std::memcpy(difference, result, sizeof(*difference));
      } else {
        options_.add(slot, result);
      }
    }
    return absl::OkStatus();
  }

  void AddResult() {
    float difference = 0;
    const absl::Status added = Call([&] { return AddAll(&difference); });
    if (!added.ok()) return FailEverywhere(added);
    // `difference` is the mean of all ranks' wishes (1 of a rank that has asked to stop, else 0)
    // less this rank's own. A sum of ones and zeros is exact, and n / n is 1, so that on a rank
    // that has asked a difference of 0 says exactly that all have. A rank that has not asked is
    // itself the proof that not all have.
    // In a round of this rank's own there is no difference: the barrier before its last one has
    // said that all have asked.
    share_asked_ = difference + (asked_ ? 1.0F : 0.0F);
    if (asked_ && difference == 0) return EndByAgreement();
    if (wants_to_stop_) {
      phase_ = Phase::kSnapshotDue;
      return;
    }
    phase_ = Phase::kPausing;
    context().SendAfter(*this, std::max(options_.pause, kLeastPause), BeginRound{});
  }

  void EndByAgreement() {
    AnswerStops(absl::OkStatus());
    // Resumed after that wish had left: all others have stopped, and resume in their turn.
    phase_ = wants_to_stop_ ? Phase::kStopped : Phase::kSnapshotDue;
  }

  // Of what the peers do not know.
  void FailEverywhere(const absl::Status& reason) {
    rounds_.Abort(reason);
    Fail(reason);
  }

  void Fail(const absl::Status& reason) {
    failure_ = reason;
    phase_ = Phase::kStopped;
    AnswerStops(reason);
  }

  void AnswerStops(const absl::Status& status) {
    for (StopAveraging& stop : std::exchange(stops_, {})) stop.reply.Set(status);
  }

  absl::Status Overdue() const {
    const auto world_size = rounds_.plan().options().world_size.value();
    const auto asked = static_cast<int>(share_asked_ * static_cast<float>(world_size) + 0.5F);
    return absl::DeadlineExceededError(absl::StrCat("averaging: ", asked, " of ", world_size,
                                                    " ranks had asked to stop by round ",
                                                    rounds_.round().value() - 1));
  }

  // Of rounds that ranks do not share. A daemon's give no sight.
  absl::Status OverdueAlone(const absl::StatusOr<RoundSight>& sight) const {
    std::string what = "is not done";
    if (!is_last_alone()) {
      what = "began before this rank was asked to stop, and is not done";
    } else if (!sight.ok()) {
      what = "is this rank's last, and not done; other ranks may not have been asked to stop";
    } else if (!sight->missing.empty()) {
      const auto append = [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value()); };
      what = absl::StrCat("is this rank's last, and waits until rank ",
                          absl::StrJoin(sight->missing, ", ", append), " is asked to stop");
    }
    const bool has_work = sight.ok() && sight->missing.empty() && !sight->work.empty();
    return absl::DeadlineExceededError(
        absl::StrCat("averaging: round ", rounds_.round().value(), " ", what,
                     has_work ? absl::StrCat(": ", sight->work) : "",
                     ". Stop every rank, then ask this one again: its wish stands"));
  }

  ModelRounds& rounds_;
  AveragingLoopOptions options_;
  const std::optional<SlotId> stop_slot_;  // nothing where ranks do not share rounds
  Phase phase_ = Phase::kStopped;
  bool is_claimed_ = false;
  uint64_t claim_ = 0;  // the number of the one that holds
  bool wants_to_stop_ = false;
  bool asked_ = false;  // the wish that travels with the round under way, or has made it the last
  float share_asked_ = 0;  // of all ranks, in the last round
  std::vector<StopAveraging> stops_;
  absl::Status failure_;
};

TensorSpec AveragingLoop::StopTensor() { return {kStopTensor, DType::kFloat32, 1, {}}; }

absl::StatusOr<std::unique_ptr<AveragingLoop>> AveragingLoop::Create(ModelRounds& rounds,
                                                                     AveragingLoopOptions options) {
  if (options.copy_in == nullptr || options.add == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("averaging: no callback ", options.copy_in == nullptr ? "copy_in" : "add"));
  }
  if (options.pause < absl::ZeroDuration() || options.round_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("averaging: pause is ", absl::FormatDuration(options.pause),
                     ", round_timeout is ", absl::FormatDuration(options.round_timeout),
                     "; neither may be below 0, and round_timeout must be above it"));
  }
  std::optional<SlotId> stop_slot;
  for (size_t i = 0; i < rounds.plan().tensors().size(); ++i) {
    if (rounds.plan().tensors()[i].name == kStopTensor) stop_slot = SlotId(static_cast<int32_t>(i));
  }
  if (stop_slot.has_value() != options.ranks_share_rounds) {
    return absl::InvalidArgumentError(absl::StrCat(
        "averaging: the plan has ", stop_slot.has_value() ? "a" : "no", " tensor '", kStopTensor,
        "'", stop_slot.has_value() ? ", but its ranks do not share rounds" : ""));
  }
  std::unique_ptr<AveragingLoop> loop(new AveragingLoop);
  Executor* executor = options.executor;
  if (executor == nullptr) {
    ThreadExecutor::Options thread;
    thread.name = "pelton-average";
    executor = &loop->own_executor_.emplace(std::move(thread));
  }
  // Not restarted: another one would not know what of a round the weights have in them.
  SpawnOptions spawn;
  spawn.name = absl::StrCat("averaging loop of '", options.model_name, "'");
  spawn.executor = executor;
  spawn.ends_with_parent = false;
  const ActorRef<Actor> parent = options.parent;
  loop->actor_ =
      SpawnUnder<AveragingActor>(parent, std::move(spawn), &rounds, std::move(options), stop_slot);
  return loop;
}

AveragingLoop::~AveragingLoop() {
  // An error is ignored, because the callers have already got the error that ended the loop.
  StopAndWait(actor_, WaitClock().Now() + limits::kStopTimeout).IgnoreError();
}

Future<void> AveragingLoop::RequestClaim() { return Ask(NextClaim()); }

uint64_t AveragingLoop::NextClaim() {
  return last_claim_.fetch_add(1, std::memory_order_relaxed) + 1;
}

Future<void> AveragingLoop::Ask(uint64_t claim) {
  return actor_.Ask(ClaimWeights{claim, {}}, absl::InfiniteFuture());
}

Future<void> AveragingLoop::RequestStop(absl::Time deadline) {
  return actor_.Ask(StopAveraging{deadline, {}}, absl::InfiniteFuture());
}

absl::Status AveragingLoop::Claim(absl::Time deadline) {
  const uint64_t claim = NextClaim();
  const absl::Status status = AwaitDriving(Ask(claim), actor_, deadline);
  // It may be granted all the same, after this last look.
  if (absl::IsDeadlineExceeded(status)) actor_.Send(WithdrawClaim{claim}).IgnoreError();
  return status;
}

void AveragingLoop::Release() {
  actor_.Send(ReleaseWeights{}).IgnoreError();  // dead: nobody waits for the weights
}

absl::Status AveragingLoop::Stop(absl::Time deadline) {
  Future<void> stopped = RequestStop(deadline);
  // The other ranks have to stop, too, which may last.
  while (WaitHook::MayBlock() && !stopped.ready()) {
    const absl::Time now = WaitClock().Now();
    if (now >= deadline) break;
    RETURN_IF_ERROR(CheckInterrupt());
    stopped.WaitUntil(std::min(deadline, now + kInterruptInterval));
  }
  return AwaitDriving(std::move(stopped), actor_, deadline + kAnswerGrace);
}

absl::Status AveragingLoop::Resume() {
  const absl::Time soon = WaitClock().Now() + limits::kStopTimeout;
  return AwaitDriving(actor_.Ask(ResumeAveraging{}, absl::InfiniteFuture()), actor_, soon);
}

}  // namespace pelton
