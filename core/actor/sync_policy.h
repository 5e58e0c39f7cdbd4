// What the lock-free parts of the runtime are made of.
#ifndef PELTON_CORE_ACTOR_SYNC_POLICY_H_
#define PELTON_CORE_ACTOR_SYNC_POLICY_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "core/actor/wait_hook.h"
#include "core/base/sync.h"

namespace pelton::internal {

#if defined(PELTON_PAUSES_AT_ATOMICS)
// For tests of cc_paused_test (bazel/cc.bzl): the threads of a simulation may switch before each
// access. They see each other's accesses in the order in which these happen; what a load may see
// under weaker orders is for tests/interleavings.h.
// Threads: any. Owns: its value.
template <typename T>
class PausingAtomic : public std::atomic<T> {
  using Base = std::atomic<T>;

 public:
  using Base::Base;
  template <typename... Arguments>
  T load(Arguments... arguments) const {
    return Paused().load(arguments...);
  }
  template <typename... Arguments>
  void store(Arguments... arguments) {
    Paused().store(arguments...);
  }
  template <typename... Arguments>
  T exchange(Arguments... arguments) {
    return Paused().exchange(arguments...);
  }
  template <typename... Arguments>
  bool compare_exchange_strong(T& expected, Arguments... arguments) {
    return Paused().compare_exchange_strong(expected, arguments...);
  }
  template <typename... Arguments>
  bool compare_exchange_weak(T& expected, Arguments... arguments) {
    return Paused().compare_exchange_weak(expected, arguments...);
  }
  template <typename... Arguments>
  T fetch_add(Arguments... arguments) {
    return Paused().fetch_add(arguments...);
  }
  template <typename... Arguments>
  T fetch_sub(Arguments... arguments) {
    return Paused().fetch_sub(arguments...);
  }
  template <typename... Arguments>
  T fetch_or(Arguments... arguments) {
    return Paused().fetch_or(arguments...);
  }
  template <typename... Arguments>
  T fetch_and(Arguments... arguments) {
    return Paused().fetch_and(arguments...);
  }

 private:
  Base& Paused() {
    if (WaitHook* const hook = WaitHook::Current()) hook->Pause();
    return *this;
  }
  const Base& Paused() const { return const_cast<PausingAtomic*>(this)->Paused(); }
};
#endif

// The machine's; where a simulation runs the thread, its waits. A test gives them another one,
// whose threads it runs in every order and with every value that a load may see
// (tests/interleavings.h).
// Threads: a name for functions. Owns: nothing.
struct RealSync {
#if defined(PELTON_PAUSES_AT_ATOMICS)
  template <typename T>
  using Atomic = PausingAtomic<T>;
#else
  template <typename T>
  using Atomic = std::atomic<T>;
#endif
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
