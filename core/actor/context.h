// What an actor can do in its turns, beside sending.
#ifndef PELTON_CORE_ACTOR_CONTEXT_H_
#define PELTON_CORE_ACTOR_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "core/actor/actor.h"
#include "core/actor/actor_cell.h"
#include "core/actor/actor_ref.h"
#include "core/actor/executor.h"
#include "core/actor/monitor.h"
#include "core/actor/promise.h"
#include "core/base/check.h"
#include "core/base/limits.h"

namespace pelton {
namespace internal {

// Tells an incarnation of A, unless it has taken its watch back.
// Threads: as Watcher. Owns: a ref.
template <typename A>
class ActorWatcher final : public Watcher {
 public:
  ActorWatcher(ActorRef<A> self, std::shared_ptr<const std::atomic<bool>> is_over)
      : self_(std::move(self)),
        incarnation_(self_.cell()->incarnation()),
        is_over_(std::move(is_over)) {}
  void Tell(Down down) override {
    if (is_over_->load(std::memory_order_relaxed)) return;
    // After all that the actor which ended has sent before.
    using Notice = SelfMessage<A, Down, MessageClass::kNotice>;
    self_.cell()->Post(
        NewMessage<OfIncarnation<Down>>(&Notice::kKind, {incarnation_, std::move(down)}));
  }
  bool wanted() const override {
    return self_.alive() && self_.cell()->incarnation() == incarnation_ &&
           !is_over_->load(std::memory_order_relaxed);
  }

 private:
  const ActorRef<A> self_;
  const uint32_t incarnation_;
  const std::shared_ptr<const std::atomic<bool>> is_over_;  // shared with the watch
};

}  // namespace internal

// What Context::Watch gave: lets the watch be taken back. Dropping it keeps the watch.
// Threads: any, one at a time. Owns: its half of the watch.
class Watch {
 public:
  Watch() = default;
  explicit Watch(std::shared_ptr<std::atomic<bool>> is_over) : is_over_(std::move(is_over)) {}
  // No Down is sent from now on; one that was sent may still come.
  void Cancel() {
    if (is_over_ != nullptr) is_over_->store(true, std::memory_order_relaxed);
  }

 private:
  std::shared_ptr<std::atomic<bool>> is_over_;  // shared with the watcher, which may live longer
};

// A view of the running actor's own cell.
// Threads: the turns of its actor. Owns: nothing; not to be kept beyond the turn.
class Context {
 public:
  explicit Context(internal::ActorCell& cell) : cell_(cell) {}

  absl::Time Now() const { return cell_.executor().clock().Now(); }
  Executor& executor() const { return cell_.executor(); }
  ActorId id() const { return cell_.id(); }

  // The address of `self`, which must be the running actor.
  template <typename A>
  ActorRef<A> RefTo(const A& self) const {
    return ActorRef<A>(internal::RefPtr<internal::ActorCell>::Share(self.Actor::cell_));
  }

  // Delivers `message` to `self` after `delay`, unless cancelled or restarted before. It takes the
  // system lane: a full mailbox does not lose it.
  template <typename A, typename M>
  Timer SendAfter(const A& self, absl::Duration delay, M message) const {
    static_assert(internal::CheckMessage<A, M>());
    using Own = internal::OfIncarnation<M>;
    return SetTimer(delay, cell_,
                    internal::NewMessage<Own>(&internal::SelfMessage<A, M>::kKind,
                                              {cell_.incarnation(), std::move(message)}));
  }
  // Delivers `message` to another actor after `delay`, unless cancelled before.
  template <typename A, typename M>
  Timer SendAfter(const ActorRef<A>& target, absl::Duration delay, M message) const {
    static_assert(internal::CheckMessage<A, M>());
    if (!target.valid()) return Timer();
    return SetTimer(
        delay, *target.cell(),
        internal::NewMessage<M>(&internal::SystemMessage<A, M>::kKind, std::move(message)));
  }

  // Has `self.Handle(Down)` called when the actor behind `ref` ends, after what that one has sent
  // to `self`. A watch ends with the incarnation that began it, or when it is taken back.
  template <typename A, typename B>
  pelton::Watch Watch(const A& self, const ActorRef<B>& ref) const {
    static_assert(Handles<A, Down>, "an actor that watches has a public Handle(Down)");
    PELTON_CHECK(ref.valid()) << "Watch of a ref that refers to no actor";
    auto is_over = std::make_shared<std::atomic<bool>>(false);
    internal::WatchCell(*ref.cell(),
                        std::make_unique<internal::ActorWatcher<A>>(RefTo(self), is_over));
    return pelton::Watch(std::move(is_over));
  }

  // Has `then(Result<T>)` called in a turn of this incarnation, once: with the result, or with
  // kDeadlineExceeded when future.deadline() passes first.
  template <typename T, typename F>
  void Then(Future<T> future, F then) const;

  // Ends this actor in an orderly way; see ActorRef::Stop.
  void Stop(absl::Duration timeout = limits::kStopTimeout) const {
    cell_.RequestStop(Now() + timeout);
  }

  internal::ActorCell& cell() const { return cell_; }  // for the runtime itself

 private:
  Timer SetTimer(absl::Duration delay, internal::ActorCell& target,
                 internal::MessageNode* node) const {
    return cell_.executor().SetTimer(Now() + delay, target, node);
  }

  internal::ActorCell& cell_;
};

namespace internal {

// The message that a completed future becomes.
template <typename T, typename F>
struct Continue {
  RefPtr<FutureState<T>> state;
  RefPtr<ActorCell> cell;
  uint32_t incarnation;
  Timer timer;
  F then;

  void operator()(ActorCell& self) {
    timer.Cancel();
    if (self.actor() != nullptr && incarnation == self.incarnation()) then(state->TakeResult());
  }
  // The promise's side runs this: the node carries all it needs.
  static void Run(void* argument) {
    auto* node = static_cast<MessageOf<Continue>*>(argument);
    const RefPtr<ActorCell> cell = node->payload.cell;
    cell->Post(node);
  }
};

// What the timer of a Then does: completes the future, if nobody has, and tells the promise.
template <typename T>
struct Expire {
  RefPtr<FutureState<T>> state;
  void operator()(ActorCell&) {
    state->core().Abandon();
    state->TryComplete(
        absl::DeadlineExceededError("no answer by the deadline that was given to Then or Ask"));
  }
};

}  // namespace internal

template <typename T, typename F>
void Context::Then(Future<T> future, F then) const {
  PELTON_CHECK(future.valid()) << "Then of a future that was consumed";
  using internal::Continue;
  internal::RefPtr<internal::FutureState<T>> state = std::exchange(future.state_, {});
  Timer timer;
  if (future.deadline() != absl::InfiniteFuture()) {
    timer = cell_.executor().SetTimer(future.deadline(), cell_,
                                      internal::NewSystemCall(internal::Expire<T>{state}));
  }
  internal::FutureCore& core = state->core();
  internal::MessageNode* node = internal::NewSystemCall(
      Continue<T, F>{std::move(state), internal::RefPtr<internal::ActorCell>::Share(&cell_),
                     cell_.incarnation(), std::move(timer), std::move(then)});
  core.SetContinuation(&Continue<T, F>::Run,
                       static_cast<internal::MessageOf<Continue<T, F>>*>(node));
}

inline Context Actor::context() const { return Context(*cell_); }

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_CONTEXT_H_
