// Hearing of an actor's end from outside of actors; inside, see Context::Watch.
#ifndef PELTON_CORE_ACTOR_MONITOR_H_
#define PELTON_CORE_ACTOR_MONITOR_H_

#include <utility>

#include "absl/status/status.h"
#include "core/actor/actor_cell.h"
#include "core/actor/actor_ref.h"
#include "core/actor/down.h"
#include "core/actor/promise.h"

namespace pelton {
namespace internal {

// Has `tell` called once, in the last turn of `target` or, if it is dead, by the caller.
inline void WatchCell(ActorCell& target, ActorCell::Watcher tell) {
  struct Register {
    ActorCell::Watcher tell;
    ActorId id;
    std::string name;
    void operator()(ActorCell& cell) { cell.AddWatcher(std::move(tell)); }
    void OnDead() {
      absl::Status why = absl::NotFoundError(name + " had ended before it was watched");
      std::move(tell)(Down{id, std::move(name), std::move(why)});
    }
  };
  target.Post(NewSystemCall(Register{std::move(tell), target.id(), target.Describe()}));
}

}  // namespace internal

// A future of the end of `ref`'s actor.
// Blocks: never.
template <typename A>
Future<Down> WhenDown(const ActorRef<A>& ref) {
  if (!ref.valid()) {
    return Future<Down>::Completed(
        Down{ActorId(0), "nobody", absl::NotFoundError("this ref refers to no actor")});
  }
  auto [promise, future] = MakePromise<Down>();
  internal::WatchCell(*ref.cell(), [promise = std::move(promise)](Down down) mutable {
    promise.Set(std::move(down));
  });
  return std::move(future);
}

// Stops an actor and waits for its end; its reason.
// Blocks: until `deadline`. Not to be called in a turn.
// Errors: kDeadlineExceeded: it did not end in time.
template <typename A>
absl::Status StopAndWait(const ActorRef<A>& ref, absl::Time deadline) {
  Future<Down> down = WhenDown(ref);
  ref.Stop(deadline);
  absl::StatusOr<Down> end = std::move(down).Await(deadline + absl::Seconds(1));
  return end.ok() ? end->why : end.status();
}

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_MONITOR_H_
