// Which messages an actor understands, and how they are dispatched to it.
#ifndef PELTON_CORE_ACTOR_HANDLES_H_
#define PELTON_CORE_ACTOR_HANDLES_H_

#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "core/actor/actor_cell.h"
#include "core/actor/message.h"
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
}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_HANDLES_H_
