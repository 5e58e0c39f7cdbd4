// What futures of all types share: one word that says how far a completion has come.
#ifndef PELTON_CORE_ACTOR_FUTURE_CORE_H_
#define PELTON_CORE_ACTOR_FUTURE_CORE_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "core/actor/sync_policy.h"
#include "core/base/futex.h"

namespace pelton::internal {

// ONCE-1: Claim succeeds for one completer only; it then writes the result and calls Finish.
//
// Finish and whoever waits each change the word in one step and see what the other did before: who
// comes second acts for both, so no sleeper and no continuation is forgotten, and none is run
// twice. Threads: any. Owns: nothing; the typed state around it owns the result.
template <typename Sync>
class BasicFutureCore {
 public:
  using Continuation = void (*)(void* argument);

  // True for the first caller.
  bool Claim() { return (word_.fetch_or(kClaimed, std::memory_order_relaxed) & kClaimed) == 0; }
  // Publishes the result: wakes the thread that waits and runs the continuation.
  void Finish() {
    const uint32_t before = word_.fetch_or(kReady, std::memory_order_acq_rel);
    if ((before & kParked) != 0) Sync::Wake(&word_, kAllSleepers, FutexScope::kProcess);
    // Either this sees the continuation or SetContinuation sees the result, never both.
    if ((before & kContinued) != 0) continuation_(argument_);
  }
  bool ready() const { return (word_.load(std::memory_order_acquire) & kReady) != 0; }

  // The future is gone: nobody will look at the result.
  void Abandon() { word_.fetch_or(kAbandoned, std::memory_order_relaxed); }
  bool abandoned() const { return (word_.load(std::memory_order_relaxed) & kAbandoned) != 0; }

  // Has `run(argument)` called once the result is there, by whoever completes it; at once if it
  // is there. At most one continuation per future.
  void SetContinuation(Continuation run, void* argument) {
    continuation_ = run;
    argument_ = argument;
    const uint32_t before = word_.fetch_or(kContinued, std::memory_order_acq_rel);
    if ((before & kReady) != 0) run(argument);
  }

  // Sleeps until the result is there, `at_most` passed, or for no reason; whether it is there.
  // Blocks: at most `at_most`.
  bool Park(absl::Duration at_most) {
    const uint32_t word = word_.fetch_or(kParked, std::memory_order_acq_rel) | kParked;
    if ((word & kReady) == 0) Sync::Wait(&word_, word, at_most, FutexScope::kProcess);
    return ready();
  }

 private:
  static constexpr uint32_t kClaimed = 1;
  static constexpr uint32_t kReady = 2;
  static constexpr uint32_t kParked = 4;
  static constexpr uint32_t kContinued = 8;
  static constexpr uint32_t kAbandoned = 16;

  typename Sync::template Atomic<uint32_t> word_{0};
  Continuation continuation_ = nullptr;
  void* argument_ = nullptr;
};

// With the waits of this machine.
// Threads: any. Owns: nothing.
class FutureCore : public BasicFutureCore<RealSync> {
 public:
  // True if the result is there; false if `deadline` (of WaitClock) passed.
  // Blocks: until `deadline`. Spins and yields a little before it parks.
  bool WaitUntil(absl::Time deadline);
};

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_FUTURE_CORE_H_
