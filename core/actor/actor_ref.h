// The typed address of an actor.
#ifndef PELTON_CORE_ACTOR_ACTOR_REF_H_
#define PELTON_CORE_ACTOR_ACTOR_REF_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/actor/actor_cell.h"
#include "core/actor/handles.h"
#include "core/actor/permit.h"
#include "core/actor/promise.h"

namespace pelton {

// Weak and copyable: it keeps no actor alive, and stays valid when the actor is restarted, has
// ended or its executor is gone. Accepts exactly the messages that `A` has a Handle() for.
// Threads: any; this object itself one at a time. Owns: nothing of the actor.
template <typename A>
class ActorRef {
 public:
  // Refers to nobody: every send is kNotFound.
  ActorRef() = default;

  bool valid() const { return static_cast<bool>(cell_); }
  // Whether it can still handle messages.
  bool alive() const { return cell_ && cell_->alive(); }
  ActorId id() const { return cell_ ? cell_->id() : ActorId(0); }

  // Puts `message` into the mailbox. Messages of one sender arrive in the order sent.
  // Blocks: never.
  // Errors: kResourceExhausted: the mailbox is full; kNotFound: the actor is dead or stopping.
  template <typename M>
  absl::Status Send(M message) const {
    static_assert(internal::CheckMessage<A, M>());
    if (!cell_) return NobodyError();
    if (absl::Status room = cell_->Reserve(1); !room.ok()) return room;
    using Kind = internal::UserMessage<A, M>;
    internal::MessageNode* node = internal::NewMessage<M>(&Kind::kKind, std::move(message));
    if (cell_->Deliver(node)) return absl::OkStatus();
    Kind::kKind.discard(node);
    return cell_->DeadError();
  }

  // Reserves room for `count` messages, all or none.
  // Blocks: never. Errors: as Send.
  absl::StatusOr<Permits<A>> Reserve(int32_t count = 1) const {
    if (!cell_) return NobodyError();
    if (absl::Status room = cell_->Reserve(count); !room.ok()) return room;
    return Permits<A>(cell_, count);
  }

  // Sends `question`, whose field `Promise<R> reply` it fills, and returns the answer's future. If
  // it cannot be sent, the future is complete with that error; if the actor drops the promise or
  // ends, with kAborted. Dropping the future cancels.
  // Blocks: never.
  template <typename M>
  auto Ask(M question, absl::Time deadline) const {
    using Reply = typename decltype(question.reply)::value_type;
    auto [promise, future] = MakePromise<Reply>(deadline);
    question.reply = std::move(promise);
    absl::Status sent = Send(std::move(question));
    if (!sent.ok()) return Future<Reply>::Completed(std::move(sent)).WithDeadline(deadline);
    return std::move(future);
  }

  // Asks for an orderly stop: its children first; then it refuses new messages, handles those
  // already accepted and ends. What is not done by `deadline` (of its executor's clock) is dropped.
  // Blocks: never.
  void Stop(absl::Time deadline) const {
    if (cell_) cell_->RequestStop(deadline);
  }

  friend bool operator==(const ActorRef&, const ActorRef&) = default;

  // For the runtime itself.
  explicit ActorRef(internal::RefPtr<internal::ActorCell> cell) : cell_(std::move(cell)) {}
  internal::ActorCell* cell() const { return cell_.get(); }

 private:
  static absl::Status NobodyError() { return absl::NotFoundError("this ref refers to no actor"); }

  internal::RefPtr<internal::ActorCell> cell_;
};

namespace internal {
template <typename A>
struct SendableRule<ActorRef<A>> : SendableParts<> {};
template <typename A>
struct SendableRule<Permits<A>> : SendableParts<> {};
}  // namespace internal

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_ACTOR_REF_H_
