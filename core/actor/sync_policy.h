// What the lock-free parts of the runtime are made of.
#ifndef PELTON_CORE_ACTOR_SYNC_POLICY_H_
#define PELTON_CORE_ACTOR_SYNC_POLICY_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "core/actor/wait_hook.h"
#include "core/base/futex.h"

namespace pelton::internal {

// The machine's; where a simulation runs the thread, its waits. A test gives them another one,
// whose threads it runs in every order and with every value that a load may see
// (tests/interleavings.h).
// Threads: a name for functions. Owns: nothing.
struct RealSync {
  template <typename T>
  using Atomic = std::atomic<T>;
  static void Wait(const Atomic<uint32_t>* word, uint32_t expected, absl::Duration at_most,
                   FutexScope scope) {
    if (WaitHook* const hook = WaitHook::Current()) {
      // Whoever wakes changes the word first.
      const auto is_changed = [&] { return word->load() != expected; };
      hook->WaitUntil(is_changed, hook->clock().Now() + at_most);
      return;
    }
    FutexWait(word, expected, at_most, scope);
  }
  static void Wake(const Atomic<uint32_t>* word, int count, FutexScope scope) {
    FutexWake(word, count, scope);
  }
};

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_SYNC_POLICY_H_
