// Room in a mailbox that was reserved before the work that ends in a message.
#ifndef PELTON_CORE_ACTOR_PERMIT_H_
#define PELTON_CORE_ACTOR_PERMIT_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "core/actor/handles.h"
#include "core/actor/ref_ptr.h"

namespace pelton {

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

#endif  // PELTON_CORE_ACTOR_PERMIT_H_
