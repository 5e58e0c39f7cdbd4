// What futures of all types share: one word that says how far a completion has come.
#ifndef PELTON_CORE_ACTOR_FUTURE_CORE_H_
#define PELTON_CORE_ACTOR_FUTURE_CORE_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace pelton::internal {

// ONCE-1: Claim succeeds for one completer only; it then writes the result and calls Finish.
// Threads: any. Owns: nothing; the typed state around it owns the result.
class FutureCore {
 public:
  using Continuation = void (*)(void* argument);

  // True for the first caller.
  bool Claim() { return (word_.fetch_or(kClaimed, std::memory_order_relaxed) & kClaimed) == 0; }
  // Publishes the result: wakes the thread that waits and runs the continuation.
  void Finish();
  bool ready() const { return (word_.load(std::memory_order_acquire) & kReady) != 0; }

  // The future is gone: nobody will look at the result.
  void Abandon() { word_.fetch_or(kAbandoned, std::memory_order_relaxed); }
  bool abandoned() const { return (word_.load(std::memory_order_relaxed) & kAbandoned) != 0; }

  // Has `run(argument)` called once the result is there, by whoever completes it; at once if it
  // is there. At most one continuation per future.
  void SetContinuation(Continuation run, void* argument);

  // True if the result is there; false if `deadline` (of WaitClock) passed.
  // Blocks: until `deadline`. Spins and yields a little before it parks.
  bool WaitUntil(absl::Time deadline);

 private:
  static constexpr uint32_t kClaimed = 1;
  static constexpr uint32_t kReady = 2;
  static constexpr uint32_t kParked = 4;
  static constexpr uint32_t kContinued = 8;
  static constexpr uint32_t kAbandoned = 16;

  bool ParkUntil(absl::Time deadline);

  std::atomic<uint32_t> word_{0};
  Continuation continuation_ = nullptr;
  void* argument_ = nullptr;
};

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_FUTURE_CORE_H_
