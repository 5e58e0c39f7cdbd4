// How a thread waits before it parks: spin a little, then give the core away a few times.
#ifndef PELTON_CORE_ACTOR_BACKOFF_H_
#define PELTON_CORE_ACTOR_BACKOFF_H_

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

// One wait: call Pause until it says to park.
// Threads: one. Owns: nothing.
class Backoff {
 public:
  explicit Backoff(int yields = kYields)
      : spins_(SpinningAllowed() ? kSpins : 0), yields_(yields) {}

  // Spins or yields once; false when it is time to park.
  bool Pause();
  // The same without yields, for a thread that only waits to be woken. Linux's scheduler (EEVDF)
  // lets a thread that has yielded wait longer for a core when it is woken: up to some time slices.
  bool Spin();
  // To be called when there was work.
  void Reset() { *this = Backoff(); }

 private:
  static constexpr int kSpins = 10;  // of some 20-40 ns each
  // On a busy machine each yield costs a time slice; a wake-up is served sooner than that.
  static constexpr int kYields = 3;

  int spins_;
  int yields_;
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
