// Running an idle actor on the caller's thread.
#ifndef PELTON_CORE_ACTOR_BORROW_H_
#define PELTON_CORE_ACTOR_BORROW_H_

#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "core/actor/actor_cell.h"
#include "core/actor/actor_ref.h"
#include "core/actor/backoff.h"
#include "core/actor/promise.h"
#include "core/actor/ref_ptr.h"
#include "core/actor/wait_hook.h"

namespace pelton {

// Exclusive access to an actor, as if in one of its turns: what its methods do is ordered with all
// of its turns. Messages that arrive meanwhile wait for Turn() or for the release.
// Threads: the one that borrowed it. Owns: the actor's turn, until destroyed.
template <typename A>
class Borrowed {
 public:
  explicit Borrowed(internal::RefPtr<internal::ActorCell> cell) : cell_(std::move(cell)) {}
  Borrowed(Borrowed&&) noexcept = default;
  Borrowed& operator=(Borrowed&& other) noexcept {
    Release();
    cell_ = std::move(other.cell_);
    last_poll_ = other.last_poll_;
    touched_ = other.touched_;
    return *this;
  }
  ~Borrowed() { Release(); }

  // Not to be called once Turn() was false.
  A& operator*() {
    touched_ = true;
    return static_cast<A&>(*cell_->actor());
  }
  A* operator->() { return &**this; }
  // The same, for what leaves the actor with as much to poll for as before: where the last poll
  // found nothing, the release need not wake the executor.
  A& Untouched() { return static_cast<A&>(*cell_->actor()); }

  // Handles the messages that wait, then polls once if the actor polls. False if the actor has
  // ended or failed: then nothing is borrowed any more.
  bool Turn() {
    const internal::TurnOutcome outcome = cell_->Turn(kQuota);
    last_poll_ = outcome.more ? PollResult::kMoved : outcome.poll;
    touched_ = false;
    if (outcome.dead) {
      std::exchange(cell_, {})->Unref();  // the executor's count
      return false;
    }
    if (cell_->lendable()) return true;
    internal::ActorCell& cell = *cell_;
    cell.executor().Schedule(cell);
    cell_ = {};
    return false;
  }
  // What the last Turn's poll came to; kMoved too if messages are left.
  PollResult last_poll() const { return last_poll_; }

 private:
  static constexpr int kQuota = 256;

  void Release() {
    if (!cell_) return;
    // Where something may be in flight, a turn on the executor finds out.
    const bool settled =
        !cell_->type().polls || (!touched_ && last_poll_ == PollResult::kNothingToDo);
    if (!settled || !cell_->TryRelease()) cell_->executor().Schedule(*cell_);
    cell_ = {};
  }

  internal::RefPtr<internal::ActorCell> cell_;
  // Unknown before the first Turn: the executor may have found the actor lent and left it to us.
  PollResult last_poll_ = PollResult::kIdle;
  bool touched_ = false;  // since the last poll
};

// Borrows the actor behind `ref` if it is idle: no turn of it is running or due. An actor that
// polls is idle between two polls. Blocks: never; nullopt if it is busy, suspended or dead.
template <typename A>
std::optional<Borrowed<A>> TryBorrow(const ActorRef<A>& ref) {
  internal::ActorCell* cell = ref.cell();
  if (cell == nullptr || !cell->TryAcquire()) return std::nullopt;
  if (!cell->lendable()) {  // it failed, and waits for its children or its parent's verdict
    if (!cell->TryRelease()) cell->executor().Schedule(*cell);
    return std::nullopt;
  }
  return Borrowed<A>(internal::RefPtr<internal::ActorCell>::Share(cell));
}

// Waiting for an actor by doing its work.

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
        } else if (actor->last_poll() == PollResult::kNothingToDo || !WaitHook::MayBlock() ||
                   !backoff.Pause()) {
          break;
        }
      }
    }
  }
  return std::move(future).Await(deadline);
}

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_BORROW_H_
