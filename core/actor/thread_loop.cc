#include "core/actor/thread_loop.h"

#include <algorithm>

#include "core/actor/backoff.h"
#include "core/base/check.h"

namespace pelton::internal {
namespace {

constexpr int kMessagesPerTurn = 256;
constexpr int kTurnsPerRound = 64;
constexpr uint32_t kPassesPerClockRead = 16;

}  // namespace

bool ThreadLoop::PushFromOutside(ActorCell& cell) { return inbound_.Push(cell); }

void ThreadLoop::TakeInbound() {
  ActorCell* oldest = inbound_.TakeAll();
  while (oldest != nullptr) queue_.Push(*std::exchange(oldest, oldest->next_scheduled));
}

bool ThreadLoop::RunOnce() {
  bool moved = RunScheduled();
  moved |= PollAll();
  moved |= GlanceAtTimers();
  // A message that came between a turn's last drain and its release has put the actor back into the
  // queue, and nobody will kick for it: its sender saw that the turn was held.
  return moved || !queue_.empty();
}

bool ThreadLoop::RunScheduled() {
  TakeInbound();
  int turns = 0;
  while (ActorCell* cell = queue_.Pop()) {
    RunTurn(*cell);
    if (++turns == kTurnsPerRound) break;
  }
  return turns > 0;
}

TurnOutcome ThreadLoop::RunTurn(ActorCell& cell) {
  const TurnOutcome outcome = cell.Turn(kMessagesPerTurn);
  if (outcome.dead) {
    cell.Unref();
    return outcome;
  }
  if (outcome.poll != PollResult::kNothingToDo && !cell.on_poll_list) {
    cell.on_poll_list = true;
    polled_.push_back({RefPtr<ActorCell>::Share(&cell), outcome.max_park});
  }
  if (outcome.more || !cell.TryRelease()) queue_.Push(cell);
  return outcome;
}

bool ThreadLoop::PollAll() {
  bool moved = false;
  for (size_t i = 0; i < polled_.size();) {
    ActorCell& cell = *polled_[i].cell;
    // Whoever else holds the turn sees to it that the actor is polled again: a borrower schedules
    // it, and so has whoever sent a message.
    const bool acquired = cell.TryAcquire();
    TurnOutcome outcome;
    if (acquired) outcome = RunTurn(cell);
    moved |= outcome.moved;
    if (acquired && !outcome.dead && outcome.poll != PollResult::kNothingToDo) {
      polled_[i++].max_park = outcome.max_park;
    } else {
      cell.on_poll_list = false;
      polled_.erase(polled_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return moved;
}

bool ThreadLoop::GlanceAtTimers() {
  if (timers_.NextTime() == absl::InfiniteFuture()) return false;
  return ++passes_ % kPassesPerClockRead == 0 && DeliverDueTimers();
}

bool ThreadLoop::DeliverDueTimers() {
  if (timers_.NextTime() == absl::InfiniteFuture()) return false;
  return timers_.DeliverDue(clock_.Now());
}

absl::Duration ThreadLoop::LongestPark() const {
  PELTON_CHECK(queue_.empty()) << "a thread was about to park with a runnable actor";
  absl::Duration at_most = std::min(waits::kLongestSleep, timers_.NextTime() - clock_.Now());
  for (const Polled& polled : polled_) at_most = std::min(at_most, polled.max_park);
  return at_most;
}

}  // namespace pelton::internal
