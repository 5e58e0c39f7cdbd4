// The base classes of all actors.
#ifndef PELTON_CORE_ACTOR_ACTOR_H_
#define PELTON_CORE_ACTOR_ACTOR_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/ids.h"

namespace pelton {

// Name of an actor inside its process; the same for all of its incarnations.
using ActorId = Id<struct ActorIdTag, uint64_t>;

// What a watcher hears: sent once per Watch, when the actor has ended for good (not when it is
// restarted), or at once if it has already.
struct Down {
  ActorId who;
  std::string name;
  absl::Status why;  // OK after an orderly stop; kNotFound if it had ended before it was watched
};

class Context;
namespace internal {
class ActorCell;
}

// State and behaviour run by one thread at a time. A subclass has, for each message it understands,
// an overload
//   void Handle(Message message);   or   absl::Status Handle(Message message);
// A status that is not OK ends the actor with that reason, as does an exception that leaves a turn;
// its parent then decides what follows (supervisor.h). Handlers never block, unless they run on a
// pool whose turns may (PoolExecutor::Options).
// Threads: all methods run in the actor's turns, which follow one another on any thread of its
// executor (or on a borrower's); the constructor runs where it is spawned.
// Owns: what it declares.
class Actor {
 public:
  Actor() = default;
  virtual ~Actor() = default;
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  // The first turn. An error ends the actor.
  virtual absl::Status OnStart() { return absl::OkStatus(); }
  // A child has failed for good: its failure escalates, or it was restarted too often. An error
  // ends this actor as well; one that knows to go on without the child returns OK.
  virtual absl::Status OnChildFailed(const Down& child) { return child.why; }
  // The last turn of this object, after all its children have ended: `why` is OK after an orderly
  // stop.
  virtual void OnStop(const absl::Status& why) {}

 protected:
  // What a turn can do: context.h. Not to be used in the constructor or kept beyond the object.
  Context context() const;

 private:
  friend class internal::ActorCell;
  friend class Context;
  internal::ActorCell* cell_ = nullptr;
};

enum class PollResult {
  kMoved,        // progress was made: poll again at once
  kIdle,         // work is in flight but did not move
  kNothingToDo,  // nothing in flight: poll again only after the next message
};

// An actor that drives non-blocking work. It is polled after each of its turns and then for as long
// as it has work in flight. Between two polls it can be borrowed.
// Threads: as Actor. Owns: as Actor.
class PollingActor : public Actor {
 public:
  // Advances what is in flight.
  // Blocks: never.
  virtual PollResult Poll() = 0;

  // Longest time its thread may park while work is in flight and does not move: bounds how late an
  // event is seen that kicks no waker.
  virtual absl::Duration MaxPark() const { return absl::Milliseconds(1); }
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_ACTOR_H_
