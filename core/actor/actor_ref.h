// The typed address of an actor: which messages the actor understands, how they are dispatched to
// it, and how they are sent.
#ifndef PELTON_CORE_ACTOR_ACTOR_REF_H_
#define PELTON_CORE_ACTOR_ACTOR_REF_H_

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/actor/actor_cell.h"
#include "core/actor/mailbox.h"
#include "core/actor/promise.h"
#include "core/actor/ref_ptr.h"
#include "core/actor/sendable.h"
#include "core/actor/spawn_options.h"

namespace pelton {

// A has an accessible overload Handle(M) that returns void or absl::Status.
template <typename A, typename M>
concept Handles = requires(A& actor, M&& message) {
  actor.Handle(std::move(message));
};

namespace internal {

template <typename A, typename M>
absl::Status CallHandler(Actor& actor, M&& message) {
  A& typed = static_cast<A&>(actor);
  if constexpr (std::is_void_v<decltype(typed.Handle(std::move(message)))>) {
    typed.Handle(std::move(message));
    return absl::OkStatus();
  } else {
    return typed.Handle(std::move(message));
  }
}

// How a message from a ref is handled.
template <typename A, typename M>
struct UserMessage {
  static absl::Status Handle(ActorCell& cell, MessageNode* node) {
    return CallHandler<A>(*cell.actor(), TakePayload<M>(node));
  }
  static constexpr MessageKind kKind{&Handle, &FreeMessage<M>, MessageClass::kUser};
};

// The same of class kSystem, which may come when there is no incarnation: then the next one gets
// it.
template <typename A, typename M>
struct SystemMessage {
  static absl::Status Handle(ActorCell& cell, MessageNode* node) {
    if (cell.actor() == nullptr) {
      cell.KeepForRestart(node);
      return absl::OkStatus();
    }
    return CallHandler<A>(*cell.actor(), TakePayload<M>(node));
  }
  static constexpr MessageKind kKind{&Handle, &FreeMessage<M>, MessageClass::kSystem};
};

// A message of an actor to itself, without room: its next incarnation does not get it.
template <typename M>
struct OfIncarnation {
  uint32_t incarnation;
  M message;
};
template <typename A, typename M, MessageClass kClass = MessageClass::kSystem>
struct SelfMessage {
  static absl::Status Handle(ActorCell& cell, MessageNode* node) {
    auto payload = TakePayload<OfIncarnation<M>>(node);
    if (cell.actor() == nullptr || payload.incarnation != cell.incarnation()) {
      return absl::OkStatus();
    }
    return CallHandler<A>(*cell.actor(), std::move(payload.message));
  }
  static constexpr MessageKind kKind{&Handle, &FreeMessage<OfIncarnation<M>>, kClass};
};

// Compiles if `M` is a message that `A` understands, else says in words what is wrong.
template <typename A, typename M>
constexpr bool CheckMessage() {
  static_assert(ExplainMessage<M>());
  static_assert(Handles<A, M>, "this actor has no public Handle() for this message");
  return true;
}

}  // namespace internal

// Room in a mailbox that was reserved before the work that ends in a message.
// Lets `remaining()` messages be sent that cannot fail for lack of room, not even while the actor
// is stopping: it waits for them. What is not used goes back when this object does.
// Threads: one at a time. Owns: the room.
template <typename A>
class Permits {
 public:
  Permits(internal::RefPtr<internal::ActorCell> cell, int32_t count)
      : cell_(std::move(cell)), count_(count) {}
  Permits(Permits&& other) noexcept
      : cell_(std::move(other.cell_)), count_(std::exchange(other.count_, 0)) {}
  Permits& operator=(Permits&& other) noexcept {
    std::swap(cell_, other.cell_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Permits() {
    if (count_ > 0) cell_->ReturnRoom(count_);
  }

  int32_t remaining() const { return count_; }

  // Sends with one of the remaining permits.
  // Blocks: never. Errors: kNotFound: the actor is dead; kFailedPrecondition: none remaining.
  template <typename M>
  absl::Status Send(M message) {
    static_assert(internal::CheckMessage<A, M>());
    if (count_ == 0)
      return absl::FailedPreconditionError(
          "no permit is left of those reserved: reserve room for every message that is to be sent");
    --count_;
    using Kind = internal::UserMessage<A, M>;
    internal::MessageNode* node = internal::NewMessage<M>(&Kind::kKind, std::move(message));
    if (cell_->Deliver(node)) return absl::OkStatus();
    Kind::kKind.discard(node);
    return cell_->DeadError();
  }

 private:
  internal::RefPtr<internal::ActorCell> cell_;
  int32_t count_;
};

// Weak and copyable: it keeps no actor alive, and stays valid when the actor is restarted, has
// ended or its executor is gone. Accepts exactly the messages that `A` has a Handle() for.
// Threads: any; this object itself one at a time. Owns: nothing of the actor.
template <typename A>
class ActorRef {
 public:
  // Refers to nobody: every send is kNotFound.
  ActorRef() = default;
  // The same actor as one of a base class: without messages, for those who look after it.
  template <typename D>
  requires(!std::is_same_v<D, A> && std::is_base_of_v<A, D>) ActorRef(const ActorRef<D>& other)
      : cell_(internal::RefPtr<internal::ActorCell>::Share(other.cell())) {}

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

  // The same as soon as there is room, in the order of the calls; what is sent without waiting may
  // come between. Dropping the future takes the wish back.
  // Blocks: never.
  // Errors of the answer: kNotFound: the actor is dead or stopping; kInvalidArgument: it will never
  // have as much room; kDeadlineExceeded: see Future::Await and Context::Then.
  Future<Permits<A>> WhenRoom(int32_t count, absl::Time deadline) const;

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

  // Asks for an orderly stop: its children first; then it refuses new messages, handles or drops
  // those already accepted, waits for work in flight and ends. What is not done by `deadline` (of
  // its executor's clock) is dropped.
  // Blocks: never.
  void Stop(absl::Time deadline, StopMode mode = StopMode::kDrain) const {
    if (cell_) cell_->RequestStop(deadline, mode);
  }

  friend bool operator==(const ActorRef&, const ActorRef&) = default;

  // For the runtime itself.
  explicit ActorRef(internal::RefPtr<internal::ActorCell> cell) : cell_(std::move(cell)) {}
  internal::ActorCell* cell() const { return cell_.get(); }

 private:
  static absl::Status NobodyError() {
    return absl::NotFoundError("this ref refers to no actor: it was not made by Spawn");
  }

  internal::RefPtr<internal::ActorCell> cell_;
};

namespace internal {

// Gives a future its permits. Threads: as RoomWaiter. Owns: the promise.
template <typename A>
class PermitWaiter final : public RoomWaiter {
 public:
  PermitWaiter(Promise<Permits<A>> promise, int32_t count)
      : promise_(std::move(promise)), count_(count) {}

  bool Serve(ActorCell& cell) override {
    if (promise_.cancelled()) return true;
    absl::Status room = cell.Reserve(count_);
    if (absl::IsResourceExhausted(room)) return false;
    if (room.ok()) {
      promise_.Set(Permits<A>(RefPtr<ActorCell>::Share(&cell), count_));
    } else {
      promise_.Set(std::move(room));
    }
    return true;
  }
  void Refuse(absl::Status why) override { promise_.Set(std::move(why)); }

 private:
  Promise<Permits<A>> promise_;
  const int32_t count_;
};

}  // namespace internal

template <typename A>
Future<Permits<A>> ActorRef<A>::WhenRoom(int32_t count, absl::Time deadline) const {
  absl::StatusOr<Permits<A>> now = Reserve(count);
  if (now.ok() || !absl::IsResourceExhausted(now.status())) {
    return Future<Permits<A>>::Completed(std::move(now)).WithDeadline(deadline);
  }
  if (count > cell_->mailbox_capacity()) {
    return Future<Permits<A>>::Completed(absl::InvalidArgumentError(absl::StrCat(
        "count: ", count, " messages do not fit into the mailbox: ", now.status().message())));
  }
  auto [promise, future] = MakePromise<Permits<A>>(deadline);
  cell_->AwaitRoom(std::make_unique<internal::PermitWaiter<A>>(std::move(promise), count));
  return std::move(future);
}

namespace internal {
template <typename A>
struct SendableRule<ActorRef<A>> : SendableParts<> {};
template <typename A>
struct SendableRule<Permits<A>> : SendableParts<> {};
}  // namespace internal

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_ACTOR_REF_H_
