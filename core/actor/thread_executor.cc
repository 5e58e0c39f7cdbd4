#include "core/actor/thread_executor.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "core/actor/backoff.h"
#include "core/base/limits.h"

namespace pelton {
namespace {

using internal::ActorCell;
using internal::RefPtr;
using internal::TurnOutcome;

constexpr int kMessagesPerTurn = 256;
constexpr int kTurnsPerRound = 64;
constexpr uint32_t kRoundsPerClockRead = 16;
// No wait without an end: a lost wake-up would be a delay, never a hang.
constexpr absl::Duration kLongestPark = absl::Seconds(10);

constinit thread_local const ThreadExecutor* current_executor = nullptr;

Waker MakeWaker(std::atomic<uint32_t>* word) { return word == nullptr ? Waker() : Waker(word); }

}  // namespace

ThreadExecutor::ThreadExecutor() : ThreadExecutor(Options{}) {}

ThreadExecutor::ThreadExecutor(Options options)
    : options_(std::move(options)), waker_(MakeWaker(options_.waker_word)) {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), options_.name.substr(0, 15).c_str());
}

ThreadExecutor::~ThreadExecutor() {
  // What does not end in time is ended by force below.
  Shutdown(clock().Now() + limits::kStopTimeout).IgnoreError();
  exit_.store(true, std::memory_order_release);
  waker_.Kick();
  thread_.join();
  KillAll();
}

void ThreadExecutor::Schedule(ActorCell& cell) {
  if (current_executor == this) return queue_.Push(cell);
  ActorCell* head = inbound_.load(std::memory_order_relaxed);
  do {
    cell.next_scheduled = head;
  } while (!inbound_.compare_exchange_weak(head, &cell));
  // Whoever found it empty kicks for all until the thread takes the batch.
  if (head == nullptr) waker_.Kick();
}

void ThreadExecutor::TakeInbound() {
  if (inbound_.load(std::memory_order_relaxed) == nullptr) return;
  ActorCell* newest = inbound_.exchange(nullptr, std::memory_order_acquire);
  ActorCell* oldest = nullptr;
  while (newest != nullptr)
    oldest = std::exchange(newest, std::exchange(newest->next_scheduled, oldest));
  while (oldest != nullptr) queue_.Push(*std::exchange(oldest, oldest->next_scheduled));
}

void ThreadExecutor::Run() {
  const RuntimeThread counted;
  current_executor = this;
  Backoff backoff;
  while (!exit_.load(std::memory_order_acquire)) {
    bool moved = RunScheduled();
    moved |= PollAll();
    moved |= RunTimers(/*about_to_park=*/false);
    if (moved) {
      backoff.Reset();
      continue;
    }
    // Whoever makes polled work move on may need this core; a message comes with a wake-up.
    const bool paused = polled_.empty() ? backoff.Spin() : backoff.Pause();
    if (!paused && !RunTimers(/*about_to_park=*/true)) Park();
  }
  current_executor = nullptr;
}

bool ThreadExecutor::RunScheduled() {
  TakeInbound();
  int turns = 0;
  while (ActorCell* cell = queue_.Pop()) {
    RunTurn(*cell);
    if (++turns == kTurnsPerRound) break;
  }
  return turns > 0;
}

TurnOutcome ThreadExecutor::RunTurn(ActorCell& cell) {
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

bool ThreadExecutor::PollAll() {
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

bool ThreadExecutor::RunTimers(bool about_to_park) {
  if (timers().NextTime() == absl::InfiniteFuture()) return false;
  if (!about_to_park && ++rounds_ % kRoundsPerClockRead != 0) return false;
  return timers().DeliverDue(clock().Now());
}

void ThreadExecutor::Park() {
  absl::Duration at_most = std::min(kLongestPark, timers().NextTime() - clock().Now());
  for (const Polled& polled : polled_) at_most = std::min(at_most, polled.max_park);
  if (!polled_.empty() && options_.park != nullptr) {
    options_.park(waker_, at_most);
  } else {
    waker_.Park(at_most);
  }
}

}  // namespace pelton
