// Where actors run, and the handle of a message that is delivered later.
#ifndef PELTON_CORE_ACTOR_EXECUTOR_H_
#define PELTON_CORE_ACTOR_EXECUTOR_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/actor/mailbox.h"
#include "core/actor/ref_ptr.h"
#include "core/base/clock.h"

namespace pelton {
namespace internal {

// What a Timer speaks to: the queue that holds it.
// Threads: any. Owns: per implementation.
class TimerSource {
 public:
  virtual void Ref() = 0;
  virtual void Unref() = 0;
  virtual bool Cancel(uint32_t entry, uint32_t use) = 0;

 protected:
  ~TimerSource() = default;
};

}  // namespace internal

// Names one pending timer. Dropping it lets the timer run; it may outlive the executor.
// Threads: any, one at a time. Owns: a count on the queue.
class Timer {
 public:
  Timer() = default;
  Timer(internal::RefPtr<internal::TimerSource> source, uint32_t entry, uint32_t use)
      : source_(std::move(source)), entry_(entry), use_(use) {}

  // True if the message will now never be delivered; false if it was sent already, or there is
  // none.
  bool Cancel() {
    if (!source_) return false;
    return std::exchange(source_, {})->Cancel(entry_, use_);
  }

 private:
  internal::RefPtr<internal::TimerSource> source_;
  uint32_t entry_ = 0;
  uint32_t use_ = 0;  // how often the entry had been used before
};

// Gives turns to actors. There are three: PoolExecutor, ThreadExecutor and SimExecutor.
// Threads: any. Owns: the actors spawned on it; it must outlive their turns, not their refs.
class Executor {
 public:
  virtual ~Executor() = default;

  // The clock of all its timers and deadlines; virtual in a simulation.
  virtual const Clock& clock() const = 0;

  // Stops its root actors (children first) and waits until every actor on it has ended.
  // Blocks: until `deadline`, then ends by force what is left.
  // Errors: kDeadlineExceeded, naming an actor that had not ended.
  virtual absl::Status Shutdown(absl::Time deadline) = 0;

  // What follows is for the runtime itself.

  // `cell` is held by its queue from now on and must get a turn.
  virtual void Schedule(internal::ActorCell& cell) = 0;
  // Delivers `node` to `target` at `when`.
  virtual Timer SetTimer(absl::Time when, internal::ActorCell& target,
                         internal::MessageNode* node) = 0;
  // Called once when a cell on this executor begins and ends to live.
  virtual void OnSpawn(internal::ActorCell& cell) = 0;
  virtual void OnDeath(internal::ActorCell& cell) = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_EXECUTOR_H_
