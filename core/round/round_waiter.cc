#include "core/round/round_waiter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/actor/backoff.h"
#include "core/actor/wait_hook.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// How long a waiter may find the scheduler busy elsewhere before it looks again.
constexpr absl::Duration kBorrowRetry = absl::Microseconds(50);

}  // namespace

// Why no wake-up is lost. What the waiter waits for comes by a turn of the scheduler, and there is
// always somebody who takes the next one:
//   - The waiter, while it holds the turn (DriveBorrowed). A message that comes meanwhile stays in
//     the mailbox for its next Turn. It may come just before the waiter parks: therefore every
//     sender that the waiter cannot do without (a bucket's mark, a request, an abort) calls the
//     runner's Wake after it has sent, and a runner remembers a Wake that comes before its Park.
//   - The scheduler's executor, while the waiter does not hold it. The release of the turn looks at
//     the mailbox and at what the last poll came to, and schedules the scheduler on its executor
//     unless there is nothing to do. That poll was the waiter's own, and no other thing than
//     `driven_by_waiter_` has changed since. The executor's thread parks on the runner with the
//     turn in its hands, so that the waiter, which then cannot borrow it, calls Wake and tries
//     again.
//   - While `drives_` is set the executor's polls leave work in flight to the waiter. So `drives_`
//     is cleared first, and then a message is sent: the turn that handles it sees it cleared,
//     because the mailbox orders the two, and polls what is in flight. So it is, too, while the
//     waiter runs a user's signal handler.
absl::Status RoundWaiter::WaitFor(const Future<void>& future, absl::Time* deadline) {
  const auto stood = [this](absl::Time now) {
    return standstill_ == nullptr ? absl::ZeroDuration() : standstill_->Total(now);
  };
  const absl::Time wanted = *deadline;
  const absl::Duration before = stood(WaitClock().Now());
  while (true) {
    RETURN_IF_ERROR(WaitUntil(future, *deadline));
    const absl::Time now = WaitClock().Now();
    *deadline = wanted + (stood(now) - before);
    if (future.ready() || now >= *deadline) return absl::OkStatus();
  }
}

absl::Status RoundWaiter::WaitUntil(const Future<void>& future, absl::Time deadline) {
  RETURN_IF_ERROR(Drive(future, deadline));
  while (!future.ready()) {
    const absl::Time now = WaitClock().Now();
    if (now >= deadline) return absl::OkStatus();
    RETURN_IF_ERROR(CheckInterrupt());
    future.WaitUntil(std::min(deadline, now + kInterruptInterval));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<BucketId>> RoundWaiter::TakeBackMarks(Round round, absl::Time deadline) {
  Future<std::vector<BucketId>> answer = scheduler_.Ask(pelton::TakeBackMarks{round, {}}, deadline);
  runner_.Wake();  // the scheduler's thread may be parked on it
  absl::StatusOr<std::vector<BucketId>> complete = std::move(answer).Await(deadline);
  if (!absl::IsDeadlineExceeded(complete.status())) return complete;
  return Annotate(complete.status(),
                  absl::StrCat("round ", round.value(), ": waiting for the buckets under way"));
}

absl::Status RoundWaiter::Drive(const Future<void>& future, absl::Time deadline) {
  if (future.ready()) return absl::OkStatus();
  drives_.store(true, std::memory_order_relaxed);
  absl::Status interrupted;
  Backoff backoff;
  while (interrupted.ok() && !future.ready() && WaitClock().Now() < deadline) {
    if (std::optional<Borrowed<BucketScheduler>> scheduler = TryBorrow(scheduler_)) {
      if (!DriveBorrowed(*std::move(scheduler), future, deadline)) break;
      backoff.Reset();
    } else {
      // Its thread is in a turn, or parked on the runner.
      runner_.Wake();
      if (backoff.Pause()) continue;
      future.WaitUntil(WaitClock().Now() + kBorrowRetry);
    }
    if (ShallCheckInterrupt() && !future.ready()) interrupted = CheckInterruptAside();
  }
  drives_.store(false, std::memory_order_relaxed);
  // Its executor's polls may have come to nothing in the meantime: it must look again. A device may
  // still be at what is complete.
  if (!future.ready() || has_device_) scheduler_.Send(CheckDeadlines{}).IgnoreError();
  return interrupted;
}

// The turn changes hands for a check, so that it is as rare in a simulation's time as in ours.
bool RoundWaiter::ShallCheckInterrupt() const {
  return InterruptIsDue() && WaitClock().Now() >= checked_at_ + kInterruptInterval;
}

// A handler of the user's may last for a minute, in which the peers need this rank's part.
absl::Status RoundWaiter::CheckInterruptAside() {
  checked_at_ = WaitClock().Now();
  drives_.store(false, std::memory_order_relaxed);
  scheduler_.Send(CheckDeadlines{}).IgnoreError();
  absl::Status interrupted = CheckInterrupt();
  drives_.store(true, std::memory_order_relaxed);
  return interrupted;
}

bool RoundWaiter::DriveBorrowed(Borrowed<BucketScheduler> scheduler, const Future<void>& future,
                                absl::Time deadline) {
  scheduler->set_driven_by_waiter(true);
  Backoff backoff;
  while (!future.ready()) {
    if (!scheduler.Turn()) return false;  // it has ended, and so has the future
    const PollResult poll = scheduler.last_poll();
    if (poll == PollResult::kMoved) {
      backoff.Reset();
      continue;
    }
    if (future.ready()) break;
    if (poll == PollResult::kNothingToDo) {  // another thread has yet to mark a tensor
      scheduler.Untouched().set_driven_by_waiter(false);
      return false;
    }
    const absl::Time now = WaitClock().Now();
    if (now >= deadline) break;
    if (backoff.Pause()) continue;
    runner_.Park(std::min(deadline, now + waits::kLongestParkWithTurn));
    if (ShallCheckInterrupt()) break;
  }
  // The poll that has brought the future has moved something. One more finds that nothing is left,
  // so that the release does not wake the executor's thread to find that out, once in each round.
  if (future.ready() && !scheduler.Turn()) return false;
  scheduler.Untouched().set_driven_by_waiter(false);
  return true;
}

}  // namespace pelton
