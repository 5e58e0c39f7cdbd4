#include "core/actor/pool_executor.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/actor/backoff.h"
#include "core/base/check.h"
#include "core/base/limits.h"

namespace pelton {
namespace {

using internal::ActorCell;
using internal::RefPtr;
using internal::TurnOutcome;

constexpr int kMessagesPerTurn = 256;
// After so many turns from the LIFO place in a row, the queue gets one.
constexpr int kLongestChain = 64;
// A busy pool thread looks at the clock and at the actors to poll once in so many turns.
constexpr uint32_t kTurnsPerLookAround = 32;

}  // namespace

constinit thread_local PoolExecutor::PoolThread* PoolExecutor::current_thread_ = nullptr;

PoolExecutor::PoolExecutor(Options options) : options_(std::move(options)) {
  PELTON_CHECK(options_.thread_count > 0) << "a pool needs a thread";
  MutexLock lock(&adding_);
  for (int i = 0; i < options_.thread_count; ++i) AddThread();
}

void PoolExecutor::AddThread() {
  const std::string name = absl::StrCat(options_.name.substr(0, 12), "-", threads_.size());
  auto made = std::make_unique<PoolThread>();
  PoolThread& pool_thread = *made;
  pool_thread.pool = this;
  threads_.reserve(threads_.size() + 1);
  pool_thread.thread = std::thread([this, &pool_thread] { Run(pool_thread); });
  pthread_setname_np(pool_thread.thread.native_handle(), name.substr(0, 15).c_str());
  threads_.push_back(std::move(made));
}

PoolExecutor::~PoolExecutor() {
  // What does not end in time is ended by force below.
  Shutdown(clock().Now() + limits::kStopTimeout).IgnoreError();
  exit_.store(true, std::memory_order_release);
  {
    MutexLock lock(&adding_);
    for (const auto& pool_thread : threads_) pool_thread->waker.Kick();
    for (const auto& pool_thread : threads_) pool_thread->thread.join();
  }
  KillAll();
  senders().AwaitNone();
}

absl::Status PoolExecutor::EndOrLeave(std::unique_ptr<PoolExecutor> pool, absl::Time deadline) {
  const bool is_in_turn = current_thread_ != nullptr && current_thread_->pool == pool.get();
  absl::Status ended = is_in_turn ? absl::DeadlineExceededError("a turn of the pool ends it")
                                  : pool->Shutdown(deadline);
  if (!ended.ok()) static_cast<void>(pool.release());
  return ended;
}

void PoolExecutor::OnSpawn(ActorCell& cell) {
  if (options_.turns_may_block) {
    MutexLock lock(&adding_);
    // First, because a system may have no more threads: an actor without one would never end.
    while (threads_.size() < actor_count() + 1) AddThread();
  }
  ExecutorBase::OnSpawn(cell);
}

size_t PoolExecutor::thread_count() const {
  MutexLock lock(&adding_);
  return threads_.size();
}

void PoolExecutor::Schedule(ActorCell& cell) {
  PoolThread* pool_thread = current_thread_;
  // Nobody takes an actor from a pool thread's own place while that thread is in a turn that
  // blocks.
  if (pool_thread == nullptr || pool_thread->pool != this || options_.turns_may_block) {
    // From the push on the actor may run, end and let the pool end, before the kick.
    const internal::Passage passage(senders());
    return Enqueue(cell);
  }
  ActorCell* displaced = std::exchange(pool_thread->lifo, &cell);
  if (displaced != nullptr) Enqueue(*displaced);
}

void PoolExecutor::Enqueue(ActorCell& cell) {
  PoolThread* woken = nullptr;
  {
    MutexLock lock(&mutex_);
    queue_.Push(cell);
    queued_.fetch_add(1, std::memory_order_relaxed);
    woken = TakeParked();
  }
  if (woken != nullptr) woken->waker.Kick();
}

PoolExecutor::PoolThread* PoolExecutor::TakeParked() {
  if (parked_.empty() || searching_ > 0) return nullptr;
  PoolThread* pool_thread = parked_.back();
  parked_.pop_back();
  ++searching_;  // on its behalf: nobody else needs to be woken for this
  return pool_thread;
}

void PoolExecutor::Kick() {
  PoolThread* woken = nullptr;
  {
    MutexLock lock(&mutex_);
    woken = TakeParked();
  }
  if (woken != nullptr) woken->waker.Kick();
}

size_t PoolExecutor::parked_count() const {
  MutexLock lock(&mutex_);
  return parked_.size();
}

void PoolExecutor::Run(PoolThread& pool_thread) {
  std::optional<RuntimeThread> counted;
  if (!options_.turns_may_block) counted.emplace();
  current_thread_ = &pool_thread;
  while (!exit_.load(std::memory_order_acquire)) {
    if (ActorCell* cell = NextRunnable(pool_thread); cell != nullptr) {
      RunTurn(pool_thread, *cell);
      if (++pool_thread.turns % kTurnsPerLookAround != 0) continue;
      RunTimers();
      PollNext(pool_thread);
    } else if (!PollNext(pool_thread) && !RunTimers()) {
      WaitForWork(pool_thread);
    }
  }
  current_thread_ = nullptr;
}

ActorCell* PoolExecutor::NextRunnable(PoolThread& pool_thread) {
  if (pool_thread.lifo != nullptr && pool_thread.chain < kLongestChain) {
    ++pool_thread.chain;
    return std::exchange(pool_thread.lifo, nullptr);
  }
  pool_thread.chain = 0;
  ActorCell* cell = TakeFromQueue();
  return cell != nullptr ? cell : std::exchange(pool_thread.lifo, nullptr);
}

ActorCell* PoolExecutor::TakeFromQueue() {
  if (LooksIdle()) return nullptr;
  ActorCell* cell = nullptr;
  PoolThread* woken = nullptr;
  {
    MutexLock lock(&mutex_);
    cell = queue_.Pop();
    if (cell != nullptr) queued_.fetch_sub(1, std::memory_order_relaxed);
    // An actor that was queued while a pool thread was on its way woke no pool thread. So the pool
    // thread that takes the first actor wakes a pool thread for the next, and a burst spreads over
    // all pool threads.
    if (!queue_.empty()) woken = TakeParked();
  }
  if (woken != nullptr) woken->waker.Kick();
  return cell;
}

void PoolExecutor::RunTurn(PoolThread& pool_thread, ActorCell& cell) {
  const TurnOutcome outcome = cell.Turn(kMessagesPerTurn);
  if (outcome.moved) {
    pool_thread.idle_polls = 0;
    pool_thread.poll_backoff.Reset();
  }
  if (outcome.dead) return cell.Unref();
  Polled polled;  // holds the actor, which may end once the turn is released
  if (outcome.poll != PollResult::kNothingToDo) {
    polled = {RefPtr<ActorCell>::Share(&cell), outcome.max_park};
  }
  // Behind the others: it had its share.
  if (outcome.more || !cell.TryRelease()) Enqueue(cell);
  // Not before: a pool thread that found the turn taken would drop the actor from the list for
  // good.
  if (polled.cell) PollLater(std::move(polled));
}

void PoolExecutor::PollLater(Polled polled) {
  MutexLock lock(&mutex_);
  if (!std::exchange(polled.cell->on_poll_list, true)) polled_.push_back(std::move(polled));
}

bool PoolExecutor::PollNext(PoolThread& pool_thread) {
  RefPtr<ActorCell> cell;
  {
    MutexLock lock(&mutex_);
    // All of them were polled in vain since something moved: time to wait.
    if (pool_thread.idle_polls >= static_cast<int>(polled_.size())) return false;
    cell = std::move(polled_.front().cell);
    polled_.pop_front();
    cell->on_poll_list = false;
  }
  ++pool_thread.idle_polls;
  // Whoever else holds the turn puts the actor back on the list after it, or schedules it.
  if (cell->TryAcquire()) RunTurn(pool_thread, *cell);
  return true;
}

bool PoolExecutor::RunTimers() {
  if (timers().NextTime() == absl::InfiniteFuture()) return false;
  return timers().DeliverDue(clock().Now());
}

void PoolExecutor::WaitForWork(PoolThread& pool_thread) {
  bool polling = false;
  {
    MutexLock lock(&mutex_);
    polling = !polled_.empty();
    if (!polling) ++searching_;
  }
  if (polling && pool_thread.poll_backoff.Pause()) {
    pool_thread.idle_polls = 0;
    return;
  }
  if (polling) return Park(pool_thread);
  Backoff backoff;
  bool parking = false;
  while (LooksIdle() && !exit_.load(std::memory_order_relaxed)) {
    if (!backoff.Pause()) {
      parking = true;
      break;
    }
  }
  {
    MutexLock lock(&mutex_);
    --searching_;
  }
  if (parking) Park(pool_thread);
}

void PoolExecutor::Park(PoolThread& pool_thread) {
  PELTON_CHECK(pool_thread.lifo == nullptr)
      << "a pool thread was about to park with a runnable actor";
  absl::Duration at_most = waits::kLongestSleep;
  {
    MutexLock lock(&mutex_);
    if (!queue_.empty() || exit_.load(std::memory_order_relaxed)) return;
    for (const Polled& polled : polled_) at_most = std::min(at_most, polled.max_park);
    parked_.push_back(&pool_thread);
  }
  at_most = std::min(at_most, timers().NextTime() - clock().Now());
  pool_thread.waker.Park(at_most);
  pool_thread.idle_polls = 0;
  MutexLock lock(&mutex_);
  // Whoever kicked it took it off the list and counted it as searching.
  if (std::erase(parked_, &pool_thread) == 0) --searching_;
}

}  // namespace pelton
