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
// After so many turns from the LIFO slot in a row, the queue gets one.
constexpr int kLongestChain = 64;
// A busy worker looks at the clock and at the actors to poll once in so many turns.
constexpr uint32_t kTurnsPerLookAround = 32;

}  // namespace

constinit thread_local PoolExecutor::Worker* PoolExecutor::current_worker_ = nullptr;

PoolExecutor::PoolExecutor(Options options) : options_(std::move(options)) {
  PELTON_CHECK(options_.thread_count > 0) << "a pool needs a thread";
  MutexLock lock(&adding_);
  for (int i = 0; i < options_.thread_count; ++i) AddWorker();
}

void PoolExecutor::AddWorker() {
  const std::string name = absl::StrCat(options_.name.substr(0, 12), "-", workers_.size());
  workers_.push_back(std::make_unique<Worker>());
  Worker& worker = *workers_.back();
  worker.pool = this;
  worker.thread = std::thread([this, &worker] { Run(worker); });
  pthread_setname_np(worker.thread.native_handle(), name.substr(0, 15).c_str());
}

PoolExecutor::~PoolExecutor() {
  // What does not end in time is ended by force below.
  Shutdown(clock().Now() + limits::kStopTimeout).IgnoreError();
  exit_.store(true, std::memory_order_release);
  {
    MutexLock lock(&adding_);
    for (const auto& worker : workers_) worker->waker.Kick();
    for (const auto& worker : workers_) worker->thread.join();
  }
  KillAll();
  senders().AwaitNone();
}

absl::Status PoolExecutor::EndOrLeave(std::unique_ptr<PoolExecutor> pool, absl::Time deadline) {
  const bool is_in_turn = current_worker_ != nullptr && current_worker_->pool == pool.get();
  absl::Status ended = is_in_turn ? absl::DeadlineExceededError("a turn of the pool ends it")
                                  : pool->Shutdown(deadline);
  if (!ended.ok()) static_cast<void>(pool.release());
  return ended;
}

void PoolExecutor::OnSpawn(ActorCell& cell) {
  ExecutorBase::OnSpawn(cell);
  if (!options_.turns_may_block) return;
  MutexLock lock(&adding_);
  while (workers_.size() < actor_count()) AddWorker();
}

size_t PoolExecutor::thread_count() const {
  MutexLock lock(&adding_);
  return workers_.size();
}

void PoolExecutor::Schedule(ActorCell& cell) {
  Worker* worker = current_worker_;
  // Nobody takes an actor from a worker's own slot while that worker is in a turn that blocks.
  if (worker == nullptr || worker->pool != this || options_.turns_may_block) {
    // From the push on the actor may run, end and let the pool end, before the kick.
    const internal::Passage passage(senders());
    return Enqueue(cell);
  }
  ActorCell* displaced = std::exchange(worker->lifo, &cell);
  if (displaced != nullptr) Enqueue(*displaced);
}

void PoolExecutor::Enqueue(ActorCell& cell) {
  Worker* woken = nullptr;
  {
    MutexLock lock(&mutex_);
    queue_.Push(cell);
    queued_.fetch_add(1, std::memory_order_relaxed);
    woken = TakeParked();
  }
  if (woken != nullptr) woken->waker.Kick();
}

PoolExecutor::Worker* PoolExecutor::TakeParked() {
  if (parked_.empty() || searching_ > 0) return nullptr;
  Worker* worker = parked_.back();
  parked_.pop_back();
  ++searching_;  // on its behalf: nobody else needs to be woken for this
  return worker;
}

void PoolExecutor::Kick() {
  Worker* woken = nullptr;
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

void PoolExecutor::Run(Worker& worker) {
  std::optional<RuntimeThread> counted;
  if (!options_.turns_may_block) counted.emplace();
  current_worker_ = &worker;
  while (!exit_.load(std::memory_order_acquire)) {
    if (ActorCell* cell = NextRunnable(worker); cell != nullptr) {
      RunTurn(worker, *cell);
      if (++worker.turns % kTurnsPerLookAround != 0) continue;
      RunTimers();
      PollNext(worker);
    } else if (!PollNext(worker) && !RunTimers()) {
      WaitForWork(worker);
    }
  }
  current_worker_ = nullptr;
}

ActorCell* PoolExecutor::NextRunnable(Worker& worker) {
  if (worker.lifo != nullptr && worker.chain < kLongestChain) {
    ++worker.chain;
    return std::exchange(worker.lifo, nullptr);
  }
  worker.chain = 0;
  ActorCell* cell = TakeFromQueue();
  return cell != nullptr ? cell : std::exchange(worker.lifo, nullptr);
}

ActorCell* PoolExecutor::TakeFromQueue() {
  if (LooksIdle()) return nullptr;
  ActorCell* cell = nullptr;
  Worker* woken = nullptr;
  {
    MutexLock lock(&mutex_);
    cell = queue_.Pop();
    if (cell != nullptr) queued_.fetch_sub(1, std::memory_order_relaxed);
    // An actor that was queued while a worker was on its way woke no worker. So the worker that
    // takes the first actor wakes a worker for the next, and a burst spreads over all workers.
    if (!queue_.empty()) woken = TakeParked();
  }
  if (woken != nullptr) woken->waker.Kick();
  return cell;
}

void PoolExecutor::RunTurn(Worker& worker, ActorCell& cell) {
  const TurnOutcome outcome = cell.Turn(kMessagesPerTurn);
  if (outcome.moved) {
    worker.idle_polls = 0;
    worker.poll_backoff.Reset();
  }
  if (outcome.dead) return cell.Unref();
  Polled polled;  // holds the actor, which may end once the turn is released
  if (outcome.poll != PollResult::kNothingToDo) {
    polled = {RefPtr<ActorCell>::Share(&cell), outcome.max_park};
  }
  // Behind the others: it had its share.
  if (outcome.more || !cell.TryRelease()) Enqueue(cell);
  // Not before: a worker that found the turn taken would drop the actor from the list for good.
  if (polled.cell) PollLater(std::move(polled));
}

void PoolExecutor::PollLater(Polled polled) {
  MutexLock lock(&mutex_);
  if (!std::exchange(polled.cell->on_poll_list, true)) polled_.push_back(std::move(polled));
}

bool PoolExecutor::PollNext(Worker& worker) {
  RefPtr<ActorCell> cell;
  {
    MutexLock lock(&mutex_);
    // All of them were polled in vain since something moved: time to wait.
    if (worker.idle_polls >= static_cast<int>(polled_.size())) return false;
    cell = std::move(polled_.front().cell);
    polled_.pop_front();
    cell->on_poll_list = false;
  }
  ++worker.idle_polls;
  // Whoever else holds the turn puts the actor back on the list after it, or schedules it.
  if (cell->TryAcquire()) RunTurn(worker, *cell);
  return true;
}

bool PoolExecutor::RunTimers() {
  if (timers().NextTime() == absl::InfiniteFuture()) return false;
  return timers().DeliverDue(clock().Now());
}

void PoolExecutor::WaitForWork(Worker& worker) {
  bool polling = false;
  {
    MutexLock lock(&mutex_);
    polling = !polled_.empty();
    if (!polling) ++searching_;
  }
  if (polling && worker.poll_backoff.Pause()) {
    worker.idle_polls = 0;
    return;
  }
  if (polling) return Park(worker);
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
  if (parking) Park(worker);
}

void PoolExecutor::Park(Worker& worker) {
  PELTON_CHECK(worker.lifo == nullptr) << "a worker was about to park with a runnable actor";
  absl::Duration at_most = waits::kLongestSleep;
  {
    MutexLock lock(&mutex_);
    if (!queue_.empty() || exit_.load(std::memory_order_relaxed)) return;
    for (const Polled& polled : polled_) at_most = std::min(at_most, polled.max_park);
    parked_.push_back(&worker);
  }
  at_most = std::min(at_most, timers().NextTime() - clock().Now());
  worker.waker.Park(at_most);
  worker.idle_polls = 0;
  MutexLock lock(&mutex_);
  // Whoever kicked it took it off the list and counted it as searching.
  if (std::erase(parked_, &worker) == 0) --searching_;
}

}  // namespace pelton
