// What all executors share: the list of living actors, the timers and the orderly end.
#ifndef PELTON_CORE_ACTOR_EXECUTOR_BASE_H_
#define PELTON_CORE_ACTOR_EXECUTOR_BASE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/actor/actor.h"
#include "core/actor/actor_cell.h"
#include "core/actor/executor.h"
#include "core/actor/timer_queue.h"
#include "core/base/sync.h"

namespace pelton {

// A living actor, as it was for a moment. `pelton status` shows them.
// Threads: a value. Owns: its text.
struct LivingActor {
  ActorId id;
  std::string name;  // of its SpawnOptions; "": it was given none
  std::string what;  // "actor 12 (pelton::BucketScheduler)"
  int32_t mailbox_used = 0;
  int32_t mailbox_capacity = 0;
  uint32_t turns = 0;  // begins again at 0 after 2^31
  bool is_in_turn = false;
  // Of those that were measured, which is one in 64.
  absl::Duration longest_turn;
};

// Those of all executors of this process.
// Threads: any. Blocks: never for long.
std::vector<LivingActor> LivingActors();

namespace internal {

// Counts the threads that are inside a call of an object whose end may come before they have
// left: the end waits for them.
// Threads: any. Owns: the count.
class Passages {
 public:
  // Blocks: until no thread is inside, which takes it some instructions.
  void AwaitNone() const;

 private:
  friend class Passage;
  std::atomic<int32_t> inside_{0};
};

// One thread's stay inside. Threads: the one that made it. Owns: its place in the count.
class Passage {
 public:
  explicit Passage(Passages& passages) : passages_(passages) {
    passages_.inside_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Passage() { passages_.inside_.fetch_sub(1, std::memory_order_release); }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

 private:
  Passages& passages_;
};

// Threads: any. Owns: one count on each living cell, and the timers.
class ExecutorBase : public Executor {
 public:
  ~ExecutorBase() override;

  const Clock& clock() const override { return Clock::Real(); }
  absl::Status Shutdown(absl::Time deadline) override;
  Timer SetTimer(absl::Time when, ActorCell& target, MessageNode* node) override;
  void OnSpawn(ActorCell& cell) override;
  void OnDeath(ActorCell& cell) override;

  // Number of living actors.
  size_t actor_count() const;
  void ListActors(std::vector<LivingActor>& list) const;

 protected:
  ExecutorBase();

  // A timer was set that is due before all others: whoever sleeps must look again.
  virtual void OnEarlierTimer() = 0;
  // Waits until no actor lives; false if `deadline` passed.
  virtual bool WaitUntilEmpty(absl::Time deadline);
  TimerQueue& timers() { return *timers_; }
  const TimerQueue& timers() const { return *timers_; }
  // Ends what still lives, by force. The executor runs no turns any more.
  void KillAll();
  // Threads that schedule from outside. A subclass awaits their end last.
  Passages& senders() { return senders_; }

 private:
  absl::Status UnfinishedError() const;

  const RefPtr<TimerQueue> timers_;
  Passages senders_;
  mutable Mutex mutex_;
  CondVar empty_;
  ActorCell* alive_ ABSL_GUARDED_BY(mutex_) = nullptr;
  size_t alive_count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool shutting_down_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace internal

// Finds actors that block a turn for too long. A turn that two looks find unfinished has lasted for
// at least the time between them. Costs the actors nothing: it compares how many turns each has
// had. Threads: one at a time. Owns: what it saw last.
class TurnWatch {
 public:
  explicit TurnWatch(absl::Duration limit) : limit_(limit) {}

  // To be called now and then, with LivingActors(). A line for each actor that has been in one turn
  // for the limit or longer, once for each such turn.
  std::vector<std::string> Look(const std::vector<LivingActor>& actors, absl::Time now);

 private:
  struct Seen {
    uint32_t turns;
    absl::Time since;
    bool is_told;
  };

  const absl::Duration limit_;
  absl::flat_hash_map<ActorId, Seen> in_turn_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_EXECUTOR_BASE_H_
