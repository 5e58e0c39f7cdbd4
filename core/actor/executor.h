// Where actors run.
#ifndef PELTON_CORE_ACTOR_EXECUTOR_H_
#define PELTON_CORE_ACTOR_EXECUTOR_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/actor/timer.h"
#include "core/base/clock.h"

namespace pelton {

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
