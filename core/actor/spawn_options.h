// How an actor is spawned and what its parent does when it fails.
#ifndef PELTON_CORE_ACTOR_SPAWN_OPTIONS_H_
#define PELTON_CORE_ACTOR_SPAWN_OPTIONS_H_

#include <cstddef>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/limits.h"

namespace pelton {

class Executor;

// Which children are restarted when one with OnFailure::kRestart fails. Siblings with another
// OnFailure are left alone.
enum class RestartStrategy {
  kOneForOne,   // that one
  kOneForAll,   // all
  kRestForOne,  // that one and those spawned after it
};

// How an actor looks after its children.
// Threads: a value. Owns: nothing.
struct SupervisionSpec {
  RestartStrategy strategy = RestartStrategy::kOneForOne;
  // The failure that would exceed `max_restarts` within `period` ends the supervisor itself.
  int max_restarts = 3;
  absl::Duration period = absl::Seconds(10);
  // Delay of the first restart within `period`; doubles with each further one up to the maximum.
  absl::Duration initial_backoff = absl::Milliseconds(10);
  absl::Duration max_backoff = absl::Seconds(5);

  friend bool operator==(const SupervisionSpec&, const SupervisionSpec&) = default;
};

// What the failure of a child means to its parent. An orderly stop is no failure.
enum class OnFailure {
  kEscalate,       // Actor::OnChildFailed decides: nothing fails unnoticed by default
  kRestart,        // a new incarnation behind the same refs; what waits in the mailbox is kept
  kAlwaysRestart,  // the same, also where it is stopped: only its parent's end ends it
  kIgnore,         // nothing; whoever watches it is told
};

// What becomes of the messages that wait when an actor is told to stop.
enum class StopMode {
  kDrain,  // they are handled, also those for which room is reserved
  kDrop,   // they are dropped
};

// Threads: a value. Owns: its callback.
struct SpawnOptions {
  // For errors and Down messages; the type's name when empty.
  std::string name = {};
  // Messages in the mailbox, reserved room included.
  size_t mailbox_capacity = limits::kMailboxCapacity;
  // Null: the parent's.
  Executor* executor = nullptr;
  OnFailure on_failure = OnFailure::kEscalate;
  // False: whoever owns it ends it, before or after its parent, which only judges its failure; it
  // is not restarted.
  bool ends_with_parent = true;
  // For the children of the actor spawned.
  SupervisionSpec supervision = {};
  // Called in the last turn of a root actor, where escalation ends.
  absl::AnyInvocable<void(const absl::Status& why)&&> on_end = {};
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_SPAWN_OPTIONS_H_
