#include "core/actor/sim_executor.h"

#include <algorithm>
#include <utility>

#include "core/actor/promise.h"
#include "core/base/check.h"
#include "core/base/limits.h"

namespace pelton {
namespace {

using internal::ActorCell;
using internal::RefPtr;
using internal::TurnOutcome;

template <typename T>
T TakeAt(std::vector<T>& from, size_t index) {
  std::swap(from[index], from.back());
  T taken = std::move(from.back());
  from.pop_back();
  return taken;
}

}  // namespace

SimExecutor::SimExecutor(uint64_t seed)
    : seed_(seed), random_(seed), previous_hook_(WaitHook::Install(this)) {}

SimExecutor::~SimExecutor() {
  // What does not end in time is ended by force below.
  Shutdown(Now() + limits::kStopTimeout).IgnoreError();
  runnable_.clear();
  delayed_.clear();
  untried_.clear();
  tried_.clear();
  KillAll();
  WaitHook::Install(previous_hook_);
}

bool SimExecutor::Step(absl::Time limit) {
  PELTON_CHECK(!in_turn_) << "a turn must not block: use Context::Then";
  const size_t choices = runnable_.size() + untried_.size();
  if (choices == 0) return JumpToNextEvent(limit);
  const size_t choice = Uniform(choices);
  if (choice < runnable_.size()) {
    ActorCell* const cell = TakeAt(runnable_, choice);
    if (Happens(faults_.delay_one_in)) {
      const auto nanos = static_cast<uint64_t>(absl::ToInt64Nanoseconds(faults_.longest_delay));
      delayed_.push_back(
          {Now() + absl::Nanoseconds(static_cast<int64_t>(Uniform(nanos + 1))), cell});
    } else {
      RunTurn(*cell);
    }
    return true;
  }
  const RefPtr<ActorCell> cell = TakeAt(untried_, choice - runnable_.size());
  cell->on_poll_list = false;
  // Whoever else holds the turn schedules it.
  if (cell->TryAcquire()) RunTurn(*cell);
  return true;
}

// The turn that comes after the crash ends the incarnation and tells the parent, as it does after a
// handler has thrown.
TurnOutcome SimExecutor::RunTurnThatMayCrash(ActorCell& cell) {
  if (!cell.restarts() || !Happens(faults_.crash_one_in)) return cell.Turn(/*quota=*/1);
  bool moved = false;
  if (const uint64_t messages = Uniform(faults_.most_messages_before_crash + 1); messages > 0) {
    const TurnOutcome before = cell.Turn(static_cast<int>(messages));
    if (before.dead) return before;
    moved = before.moved;
  }
  const internal::DroppedPromises dropped;  // by the crash
  cell.Fail(absl::InternalError("a crash that the simulation chose"));
  TurnOutcome outcome = cell.Turn(/*quota=*/1);
  outcome.moved |= moved;
  return outcome;
}

void SimExecutor::RunTurn(ActorCell& cell) {
  in_turn_ = true;
  const TurnOutcome outcome = RunTurnThatMayCrash(cell);
  in_turn_ = false;
  if (outcome.moved || !cell.type().polls) RetryPolls();
  if (outcome.dead) return cell.Unref();
  if (outcome.poll != PollResult::kNothingToDo && !cell.on_poll_list) {
    cell.on_poll_list = true;
    auto& list = outcome.poll == PollResult::kMoved ? untried_ : tried_;
    list.push_back(RefPtr<ActorCell>::Share(&cell));
  }
  if (outcome.more || !cell.TryRelease()) Schedule(cell);
}

void SimExecutor::RetryPolls() {
  std::move(tried_.begin(), tried_.end(), std::back_inserter(untried_));
  tried_.clear();
}

bool SimExecutor::JumpToNextEvent(absl::Time limit) {
  absl::Time next = timers().NextTime();
  for (EventSource* source : sources_) next = std::min(next, source->NextEventTime());
  for (const Delayed& delayed : delayed_) next = std::min(next, delayed.until);
  if (next == absl::InfiniteFuture() || next > limit) return false;
  clock_.now = std::max(clock_.now, next);
  timers().DeliverDue(clock_.now);
  RunDelayed();
  // An event may add or remove sources.
  for (EventSource* source : std::vector<EventSource*>(sources_)) {
    if (source->NextEventTime() <= clock_.now) source->RunDue(clock_.now);
  }
  RetryPolls();
  return true;
}

void SimExecutor::RunDelayed() {
  std::erase_if(delayed_, [this](const Delayed& delayed) {
    if (delayed.until > clock_.now) return false;
    runnable_.push_back(delayed.cell);
    return true;
  });
}

void SimExecutor::RunUntilIdle() {
  while (Step()) {
  }
}

void SimExecutor::RunFor(absl::Duration duration) {
  const absl::Time end = Now() + duration;
  while (Step(end)) {
  }
  clock_.now = end;
}

bool SimExecutor::RunUntil(absl::FunctionRef<bool()> done, absl::Time deadline) {
  while (!done()) {
    if (Step(deadline)) continue;
    if (deadline != absl::InfiniteFuture()) clock_.now = std::max(clock_.now, deadline);
    return done();
  }
  return true;
}

bool SimExecutor::WaitUntilEmpty(absl::Time deadline) {
  return RunUntil([this] { return actor_count() == 0; }, deadline);
}

}  // namespace pelton
