// Which messages an actor understands, and how they are dispatched to it.
#ifndef PELTON_CORE_ACTOR_HANDLES_H_
#define PELTON_CORE_ACTOR_HANDLES_H_

#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "core/actor/actor_cell.h"
#include "core/actor/message.h"
#include "core/actor/ref_ptr.h"
#include "core/actor/sendable.h"

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
  static constexpr MessageKind kKind{&Handle, &FreeMessage<M>, Lane::kUser};
};

// The same on the system lane, which may come when there is no incarnation: then the next one gets
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
  static constexpr MessageKind kKind{&Handle, &FreeMessage<M>, Lane::kSystem};
};

// A message of an actor to itself, without room: its next incarnation does not get it.
template <typename M>
struct OfIncarnation {
  uint32_t incarnation;
  M message;
};
template <typename A, typename M, Lane kLane = Lane::kSystem>
struct SelfMessage {
  static absl::Status Handle(ActorCell& cell, MessageNode* node) {
    auto payload = TakePayload<OfIncarnation<M>>(node);
    if (cell.actor() == nullptr || payload.incarnation != cell.incarnation()) {
      return absl::OkStatus();
    }
    return CallHandler<A>(*cell.actor(), std::move(payload.message));
  }
  static constexpr MessageKind kKind{&Handle, &FreeMessage<OfIncarnation<M>>, kLane};
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
    if (count_ == 0) return absl::FailedPreconditionError("no permit is left");
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

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_HANDLES_H_
