// What the sources of the compile-fail test share: an actor and a way to send to it. A source is
// compiled twice, with PELTON_BAD (must fail, with the words after "expect:") and without (must
// compile).
#ifndef PELTON_CORE_ACTOR_COMPILE_FAIL_PROBE_H_
#define PELTON_CORE_ACTOR_COMPILE_FAIL_PROBE_H_

#include "core/actor/actor_ref.h"
#include "core/actor/context.h"

namespace pelton {

// Threads: none; it is only compiled. Owns: nothing.
template <typename M>
class Understands : public Actor {
 public:
  void Handle(M) {}
};

template <typename M>
absl::Status SendTo(const ActorRef<Understands<M>>& ref, M message) {
  return ref.Send(std::move(message));
}

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_COMPILE_FAIL_PROBE_H_
