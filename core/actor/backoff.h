// How waits go on: the steps before a thread sleeps, and for how long it sleeps at most.
#ifndef PELTON_CORE_ACTOR_BACKOFF_H_
#define PELTON_CORE_ACTOR_BACKOFF_H_

#include <cstdint>

#include "absl/time/time.h"
#include "core/base/clock.h"

namespace pelton {

// Tells the processor that this is a spin loop.
inline void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Counts a thread of the runtime for as long as it lives, so that spinning stops when threads
// outnumber cores.
// Threads: any. Owns: one count.
class RuntimeThread {
 public:
  RuntimeThread();
  ~RuntimeThread();
  RuntimeThread(const RuntimeThread&) = delete;
  RuntimeThread& operator=(const RuntimeThread&) = delete;
};

// Number of processes on this machine that run like this one (ranks); they share its cores.
// Threads: any.
void SetProcessesOnHost(int count);

// Whether every thread of the runtime, and one caller per process, has a core of its own.
bool SpinningAllowed();

// What waits of one kind have in common. A bound that one place alone has stands there, with its
// reason.
namespace waits {

// How often a wait looks for news at once, and then gives its core away between two looks.
// Threads: a value. Owns: nothing.
struct Steps {
  int looks;
  int yields;
};

// Of a thread that waits for another one of this process. Ten looks take 200 to 400 ns, so that an
// answer which is given at once wakes nobody. On a busy machine each yield costs a time slice; a
// wake-up is served sooner than that.
inline constexpr Steps kForThread{10, 3};

// No sleep lasts longer, so that a lost wake-up would be a delay and never a hang. How long that
// delay may be depends on who is to end the sleep.
//
// A kick by a thread of this process, which is not lost (core/actor/waker.h): an executor's thread,
// and one that stands by at a lane. A process at rest should be.
inline constexpr absl::Duration kLongestSleep = absl::Seconds(10);
// A kick by a thread or process that may end before it gives it, and whose work is seen without it:
// a daemon's reader of a page, and who waits for a copy beside training.
inline constexpr absl::Duration kLongestSleepForWork = absl::Milliseconds(100);
// A peer's message, or the wire's Wake. A peer that dies rings nowhere, and the interruption of the
// wait is looked for between two parks (core/base/long_wait.h).
inline constexpr absl::Duration kLongestParkOnWire = absl::Milliseconds(20);
// The same on the runner of a model's rounds, by whoever holds its scheduler's turn. A timer of the
// scheduler's executor, and a sender that does not call the runner's Wake, are seen so much later.
inline constexpr absl::Duration kLongestParkWithTurn = absl::Milliseconds(1);

}  // namespace waits

// How one wait goes on while nothing moves: it looks again at once, then gives its core away
// between two looks, then sleeps. A wait whose looks do work, such as a communicator's Progress,
// takes the steps by OnIdle; one whose looks only look has Pause take them. Threads: one. Owns:
// nothing.
class Backoff {
 public:
  enum class Next : uint8_t { kLook, kYield, kPark };

  // Of a thread that waits for another one of this process; it looks only while SpinningAllowed().
  Backoff() : Backoff(waits::kForThread, /*asks=*/true) {}
  explicit Backoff(waits::Steps steps) : Backoff(steps, /*asks=*/false) {}

  // To be called when there was work, and when there was none.
  void Reset() {
    idle_ = 0;
    if (asks_) looks_ = SpinningAllowed() ? waits::kForThread.looks : 0;
  }
  Next OnIdle() {
    if (idle_ >= looks_ + yields_) return Next::kPark;
    return ++idle_ <= looks_ ? Next::kLook : Next::kYield;
  }

  // OnIdle, and spins or yields for that; false when it is time to park.
  bool Pause();
  // The same without yields, for a thread that only waits to be woken. Linux's scheduler (EEVDF)
  // lets a thread that has yielded wait longer for a core when it is woken: up to some time slices.
  bool Spin();

 private:
  Backoff(waits::Steps steps, bool asks) : asks_(asks), looks_(steps.looks), yields_(steps.yields) {
    Reset();
  }

  bool asks_;
  int looks_;
  int yields_;
  int idle_ = 0;
};

// What comes after a Backoff where what is waited for comes from another process, and
// PELTON_SPIN_US says that each of the two has a core to spare: the wait looks for so many
// microseconds more. 0, or none: it does not. Threads: one. Owns: nothing.
class LongLook {
 public:
  LongLook();
  explicit LongLook(absl::Duration lasts) : lasts_(lasts) {}

  // Passes a moment; false when it is time to park.
  bool GoesOn(const Clock& clock = Clock::Real());
  // To be called when there was work.
  void Reset() { until_ = absl::InfinitePast(); }

 private:
  absl::Duration lasts_;
  absl::Time until_ = absl::InfinitePast();  // then: it has not begun
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_BACKOFF_H_
