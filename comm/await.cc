#include "comm/await.h"

#include <sched.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/actor/wait_hook.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/long_wait.h"

namespace pelton {
namespace {

std::string RanksOf(const std::vector<Rank>& ranks) {
  return absl::StrJoin(ranks, ", ",
                       [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value()); });
}

// Who is waited for, as far as the communicator knows.
std::string Awaited(const Communicator& communicator) {
  const std::vector<Rank> missing = communicator.Missing();
  return missing.empty() ? "every rank has arrived"
                         : absl::StrCat("waiting for rank(s) ", RanksOf(missing));
}

// As DriveUntil, whose deadline comes later by what `standstill` adds meanwhile.
bool DriveWithStandstill(Communicator& communicator, absl::FunctionRef<bool()> done,
                         absl::Time deadline, const Standstill* standstill, AttendedWait* wait) {
  if (standstill == nullptr) return DriveUntil(communicator, done, deadline, wait);
  const absl::Duration stood = standstill->Total(WaitClock().Now());
  absl::Time until = deadline;
  while (!DriveUntil(communicator, done, until, wait)) {
    if (!wait->interrupted().ok()) return false;
    const absl::Time now = WaitClock().Now();
    until = deadline + (standstill->Total(now) - stood);
    if (until <= now) return false;
  }
  return true;
}

}  // namespace

bool AttendedWait::GoesOn(absl::Time now, bool drives) {
  if (began_ == absl::InfinitePast()) began_ = now;
  report_.Look(began_, now, [this, drives](absl::string_view waited) {
    const std::string call = CallName::Current();
    return absl::StrCat(
        "rank ", communicator_.rank().value(), " has waited ", waited, " in ",
        call.empty() ? absl::StrCat("communicator ", communicator_.id().value()) : call, "; ",
        drives ? Awaited(communicator_) : "another thread drives its operations");
  });
  interrupted_ = CheckInterrupt();
  return interrupted_.ok();
}

absl::Status MissedDeadline(const Communicator& communicator, Completion completion) {
  return absl::DeadlineExceededError(absl::StrCat(
      "rank ", communicator.rank().value(), ": operation ", completion.ticket, " of communicator ",
      communicator.id().value(), " missed its deadline; ", Awaited(communicator)));
}

bool DriveUntil(Communicator& communicator, absl::FunctionRef<bool()> done, absl::Time deadline,
                AttendedWait* wait) {
  if (WaitHook* hook = WaitHook::Current()) {
    auto progressed = [&] {
      communicator.Progress();
      return done();
    };
    return hook->WaitUntil(progressed, deadline);
  }
  Backoff backoff = BackoffOn(communicator);
  while (!done()) {
    if (communicator.Progress()) {
      backoff.Reset();
      continue;
    }
    const Backoff::Next next = backoff.OnIdle();
    if (next == Backoff::Next::kLook) continue;
    const absl::Time now = Clock::Real().Now();
    if (now >= deadline) return false;
    if (wait != nullptr && !wait->GoesOn(now)) return false;
    if (next == Backoff::Next::kYield) {
      sched_yield();
    } else {
      communicator.Park(std::min(deadline, now + waits::kLongestParkOnWire));
    }
  }
  return true;
}

absl::Status Await(Communicator& communicator, Completion completion, absl::Time deadline,
                   const Standstill* standstill) {
  OperationRunner::State state;
  auto done = [&] {
    state = communicator.Query(completion);
    return state.done;
  };
  AttendedWait wait(communicator);
  if (DriveWithStandstill(communicator, done, deadline, standstill, &wait)) return state.status;
  // The memory is the caller's again when no peer writes there any more (OWN-1).
  auto end = [&](const absl::Status& reason) {
    communicator.Abort(reason);
    DriveUntil(communicator, done, Clock::Real().Now() + limits::kStopTimeout);
  };
  if (!wait.interrupted().ok()) {
    end(AsAbort(wait.interrupted()));
    return wait.interrupted();
  }
  absl::Status missed = MissedDeadline(communicator, completion);
  // Another rank's deadline may have passed first; then nobody is missing any more, and its words,
  // which may still have to come in, say who was.
  communicator.Progress();
  if (done()) return state.status;
  end(missed);
  // A communicator that knows more than who is missing has put its own reason in the place of this.
  return state.done && !state.status.ok() ? state.status : missed;
}

}  // namespace pelton
