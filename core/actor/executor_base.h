// What all executors share: the list of living actors, the timers and the orderly end.
#ifndef PELTON_CORE_ACTOR_EXECUTOR_BASE_H_
#define PELTON_CORE_ACTOR_EXECUTOR_BASE_H_

#include <cstddef>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/actor/actor_cell.h"
#include "core/actor/executor.h"
#include "core/actor/timer_queue.h"
#include "core/base/sync.h"

namespace pelton::internal {

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

 protected:
  ExecutorBase() : timers_(TimerQueue::Make()) {}

  // A timer was set that is due before all others: whoever sleeps must look again.
  virtual void OnEarlierTimer() = 0;
  // Waits until no actor lives; false if `deadline` passed.
  virtual bool WaitUntilEmpty(absl::Time deadline);
  TimerQueue& timers() { return *timers_; }
  const TimerQueue& timers() const { return *timers_; }
  // Ends what still lives, by force. The executor runs no turns any more.
  void KillAll();

 private:
  absl::Status UnfinishedError() const;

  const RefPtr<TimerQueue> timers_;
  mutable Mutex mutex_;
  CondVar empty_;
  ActorCell* alive_ ABSL_GUARDED_BY(mutex_) = nullptr;
  size_t alive_count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool shutting_down_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_EXECUTOR_BASE_H_
