// Waiting for an actor by doing its work.
#ifndef PELTON_CORE_ACTOR_DRIVE_H_
#define PELTON_CORE_ACTOR_DRIVE_H_

#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "core/actor/actor_ref.h"
#include "core/actor/backoff.h"
#include "core/actor/borrow.h"
#include "core/actor/promise.h"
#include "core/actor/wait_hook.h"

namespace pelton {

// As future.Await(deadline), for a result that the actor behind `ref` is about to produce: while
// that actor can be borrowed and moves, its turns run on this thread, which saves the two wake-ups
// of a hand-over. An actor that is busy, or whose polls stop moving, is left to its executor.
// Blocks: until the earlier of `deadline` and future.deadline(). Not to be called in a turn.
// Errors: as Future::Await.
template <typename T, typename A>
Result<T> AwaitDriving(Future<T> future, const ActorRef<A>& ref, absl::Time deadline) {
  if (!future.ready()) {
    if (std::optional<Borrowed<A>> actor = TryBorrow(ref)) {
      Backoff backoff;
      while (actor->Turn() && !future.ready() && WaitClock().Now() < deadline) {
        if (actor->last_poll() == PollResult::kMoved) {
          backoff.Reset();
        } else if (actor->last_poll() == PollResult::kNothingToDo ||
                   WaitHook::Current() != nullptr || !backoff.Pause()) {
          break;
        }
      }
    }
  }
  return std::move(future).Await(deadline);
}

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_DRIVE_H_
