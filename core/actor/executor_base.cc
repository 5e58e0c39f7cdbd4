#include "core/actor/executor_base.h"

#include <sched.h>

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"

namespace pelton {
namespace {

// The executors of this process. Threads: any. Owns: nothing.
struct Executors {
  static Executors& Get() {
    static Executors* const executors = new Executors;
    return *executors;
  }
  Mutex mutex;
  std::set<const internal::ExecutorBase*> living ABSL_GUARDED_BY(mutex);
};

}  // namespace

std::vector<LivingActor> LivingActors() {
  std::vector<LivingActor> list;
  Executors& executors = Executors::Get();
  MutexLock lock(&executors.mutex);
  for (const internal::ExecutorBase* executor : executors.living) executor->ListActors(list);
  return list;
}

namespace internal {

void Passages::AwaitNone() const {
  while (inside_.load(std::memory_order_acquire) > 0) sched_yield();
}

ExecutorBase::ExecutorBase() : timers_(TimerQueue::Make()) {
  Executors& executors = Executors::Get();
  MutexLock lock(&executors.mutex);
  executors.living.insert(this);
}

ExecutorBase::~ExecutorBase() {
  {
    Executors& executors = Executors::Get();
    MutexLock lock(&executors.mutex);
    executors.living.erase(this);
  }
  PELTON_CHECK(actor_count() == 0) << "an executor was destroyed with living actors";
}

Timer ExecutorBase::SetTimer(absl::Time when, ActorCell& target, MessageNode* node) {
  bool is_next = false;
  Timer timer = timers_->Add(when, target, node, &is_next);
  if (is_next) OnEarlierTimer();
  return timer;
}

void ExecutorBase::OnSpawn(ActorCell& cell) {
  cell.Ref();
  MutexLock lock(&mutex_);
  cell.next_alive = alive_;
  if (alive_ != nullptr) alive_->previous_alive = &cell;
  alive_ = &cell;
  ++alive_count_;
  // Too late to be found by Shutdown: stopped as soon as it has started.
  if (shutting_down_ && cell.is_local_root()) cell.RequestEnd(absl::InfinitePast());
}

void ExecutorBase::OnDeath(ActorCell& cell) {
  MutexLock lock(&mutex_);
  (cell.previous_alive == nullptr ? alive_ : cell.previous_alive->next_alive) = cell.next_alive;
  if (cell.next_alive != nullptr) cell.next_alive->previous_alive = cell.previous_alive;
  if (--alive_count_ == 0) empty_.SignalAll();
}

size_t ExecutorBase::actor_count() const {
  MutexLock lock(&mutex_);
  return alive_count_;
}

void ExecutorBase::ListActors(std::vector<LivingActor>& list) const {
  MutexLock lock(&mutex_);
  for (const ActorCell* cell = alive_; cell != nullptr; cell = cell->next_alive) {
    const uint32_t turns = cell->turns();
    list.push_back({cell->id(), cell->given_name(), cell->Describe(), cell->mailbox_used(),
                    cell->mailbox_capacity(), turns / 2, turns % 2 == 1, cell->longest_turn()});
  }
}

absl::Status ExecutorBase::Shutdown(absl::Time deadline) {
  std::vector<RefPtr<ActorCell>> roots;
  {
    MutexLock lock(&mutex_);
    shutting_down_ = true;
    for (ActorCell* cell = alive_; cell != nullptr; cell = cell->next_alive) {
      if (cell->is_local_root()) roots.push_back(RefPtr<ActorCell>::Share(cell));
    }
  }
  for (const RefPtr<ActorCell>& root : roots) root->RequestEnd(deadline);
  // At the deadline they end themselves by force, which takes them a turn.
  constexpr absl::Duration kGrace = absl::Seconds(1);
  return WaitUntilEmpty(deadline + kGrace) ? absl::OkStatus() : UnfinishedError();
}

bool ExecutorBase::WaitUntilEmpty(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (alive_count_ > 0) {
    if (empty_.WaitWithDeadline(&mutex_, deadline)) break;
  }
  return alive_count_ == 0;
}

absl::Status ExecutorBase::UnfinishedError() const {
  MutexLock lock(&mutex_);
  if (alive_ == nullptr) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(alive_count_, " actors have not ended, among them ", alive_->Describe()));
}

void ExecutorBase::KillAll() {
  for (;;) {
    ActorCell* cell = nullptr;
    {
      MutexLock lock(&mutex_);
      cell = alive_;
    }
    if (cell == nullptr) break;
    cell->Die(absl::CancelledError("its executor was destroyed"));
    cell->Unref();
  }
  timers_->Clear();
}

}  // namespace internal

std::vector<std::string> TurnWatch::Look(const std::vector<LivingActor>& actors, absl::Time now) {
  const absl::flat_hash_map<ActorId, Seen> before = std::exchange(in_turn_, {});
  std::vector<std::string> lines;
  for (const LivingActor& actor : actors) {
    if (!actor.is_in_turn) continue;
    Seen seen{actor.turns, now, false};
    const auto last = before.find(actor.id);
    if (last != before.end() && last->second.turns == actor.turns) seen = last->second;
    if (!seen.is_told && now - seen.since >= limit_) {
      seen.is_told = true;
      lines.push_back(
          absl::StrCat(actor.name, actor.name.empty() ? "" : ", ", actor.what,
                       " has been in one turn for more than ",
                       absl::FormatDuration(absl::Trunc(now - seen.since, absl::Seconds(1))), "; ",
                       actor.mailbox_used, " messages wait for it"));
    }
    in_turn_.emplace(actor.id, seen);
  }
  return lines;
}

}  // namespace pelton
