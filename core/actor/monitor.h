// Hearing of an actor's end from outside of actors; inside, see Context::Watch.
#ifndef PELTON_CORE_ACTOR_MONITOR_H_
#define PELTON_CORE_ACTOR_MONITOR_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "core/actor/actor.h"
#include "core/actor/actor_cell.h"
#include "core/actor/actor_ref.h"
#include "core/actor/promise.h"

namespace pelton {
namespace internal {

// Has `watcher` told once, in the last turn of `target` or, if it is dead, by the caller.
inline void WatchCell(ActorCell& target, std::unique_ptr<Watcher> watcher) {
  struct Register {
    std::unique_ptr<Watcher> watcher;
    ActorId id;
    std::string name;
    void operator()(ActorCell& cell) { cell.AddWatcher(std::move(watcher)); }
    void OnDead() {
      absl::Status why = absl::NotFoundError(name + " had ended before it was watched");
      watcher->Tell(Down{id, std::move(name), std::move(why)});
    }
  };
  target.Post(NewSystemCall(Register{std::move(watcher), target.id(), target.Describe()}));
}

// Tells a future. Threads: as Watcher. Owns: the promise.
class FutureWatcher final : public Watcher {
 public:
  explicit FutureWatcher(Promise<Down> promise) : promise_(std::move(promise)) {}
  void Tell(Down down) override { promise_.Set(std::move(down)); }
  bool wanted() const override { return !promise_.cancelled(); }

 private:
  Promise<Down> promise_;
};

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
  internal::WatchCell(*ref.cell(), std::make_unique<internal::FutureWatcher>(std::move(promise)));
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
