#include "comm/window/remote_end.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "comm/window/arithmetic.h"
#include "core/actor/wait_hook.h"
#include "core/base/ask_until.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// An owner says itself that a mutex was not to be had in time, and who has it; this is for the
// owner that says nothing.
constexpr absl::Duration kAnswerTime = absl::Seconds(1);

}  // namespace

// The kernel knows where the mutexes are that a thread holds, so none may go while it is held.
RemoteEnd::~RemoteEnd() {
  if (has_ours_.load()) (void)ours_.Unlock();
  link_.StopServing(window_);
}

LinkQuestion RemoteEnd::QuestionOf(LinkCall call) const {
  LinkQuestion question;
  question.request.call = call;
  question.request.window = window_;
  return question;
}

Future<bool> RemoteEnd::StartWrite(const EdgeWrite::What& what) {
  LinkQuestion question = QuestionOf(what.adds ? LinkCall::kAccumulate : LinkCall::kPut);
  question.value = what.source;
  question.request.value_bytes = what.count * SizeOf(what.dtype);
  question.request.weight = what.weight;
  question.request.has_p = what.p.has_value() ? 1 : 0;
  question.request.p = what.p.value_or(0);
  return link_.Ask(question);
}

absl::Status RemoteEnd::Fill(const EdgeView& slot, const EdgeFill::What& what,
                             const MovingDeadline& deadline) {
  const int number = slot.slot->BeginFill();
  RETURN_IF_ERROR(slot.Provide(number));
  std::byte* const buffer = slot.buffer(number);
  LinkQuestion question = QuestionOf(LinkCall::kGet);
  question.target = buffer;
  question.request.value_bytes = what.count * SizeOf(what.dtype);
  RETURN_IF_ERROR(link_.AwaitTransfer(link_.Ask(question), deadline));
  const Term term{buffer, what.weight, what.dtype};
  if (what.weight != 1) WeightedSum({&term, 1}, buffer, what.count, what.dtype);
  slot.slot->Fill(number);
  return absl::OkStatus();
}

absl::StatusOr<bool> RemoteEnd::AskForMutex(const LinkQuestion& question,
                                            const MovingDeadline& deadline) {
  return link_.AwaitMutex(link_.Ask(question), deadline + kAnswerTime);
}

// The owner is told how long it may take.
absl::StatusOr<bool> RemoteEnd::AskUntil(LinkQuestion question, const MovingDeadline& deadline) {
  return pelton::AskUntil(deadline, WaitClock(), [&](absl::Time until) {
    const absl::Duration wait = std::max(until - WaitClock().Now(), absl::ZeroDuration());
    question.request.wait_ns = absl::ToInt64Nanoseconds(wait);
    return AskForMutex(question, deadline);
  });
}

absl::Status RemoteEnd::Lock(Rank taker, const MovingDeadline& deadline) {
  RETURN_IF_ERROR(ours_.Lock(taker, deadline));
  const absl::StatusOr<bool> locked = AskUntil(QuestionOf(LinkCall::kLock), deadline);
  has_ours_.store(locked.ok());
  if (!locked.ok()) RETURN_IF_ERROR(ours_.Unlock());
  return locked.status();
}

absl::StatusOr<bool> RemoteEnd::TryLock(Rank taker) {
  if (!ours_.TryLock(taker)) return false;
  const absl::StatusOr<bool> locked =
      AskForMutex(QuestionOf(LinkCall::kTryLock), WaitClock().Now() + kAnswerTime);
  has_ours_.store(locked.ok() && *locked);
  if (!has_ours_.load()) RETURN_IF_ERROR(ours_.Unlock());
  return locked;
}

absl::Status RemoteEnd::Unlock() {
  // A thread that does not have it is refused here. Another one of this rank that asks meanwhile is
  // given the mutex by its owner after that has heard of the unlocking.
  const bool has_it = has_ours_.exchange(false);
  if (const absl::Status given = ours_.Unlock(); !given.ok()) {
    has_ours_.store(has_it);  // another thread's
    return given;
  }
  const absl::Status unlocked =
      AskForMutex(QuestionOf(LinkCall::kUnlock), WaitClock().Now() + limits::kStopTimeout).status();
  // The mutex was the other rank's and has gone with it, so that a last call is not an error
  // because its owner leaves as soon as it has the value.
  return absl::IsUnavailable(unlocked) ? absl::OkStatus() : unlocked;
}

}  // namespace pelton
