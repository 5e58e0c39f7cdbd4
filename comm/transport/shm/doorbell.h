// How a rank sleeps until another process, or a thread of its own, has something for it.
#ifndef PELTON_COMM_TRANSPORT_SHM_DOORBELL_H_
#define PELTON_COMM_TRANSPORT_SHM_DOORBELL_H_

#include <atomic>
#include <cstdint>

#include "core/actor/sync_policy.h"
#include "core/base/sync.h"

namespace pelton::shm {

// One rank's bell. `asleep` is one word for all ranks of the communicator, which counts those that
// are parked, so that whoever shows something to ranks that are awake reads one word in all.
//
// Why no wake-up is lost. Whoever changes what the sleeper waits for first stores the change, in a
// sequentially consistent way, and then reads `asleep` and `parked_` (Ring). The sleeper stores
// both, its own first, and then looks for the change. All of these are sequentially consistent, so
// that one of the two sees the other's store:
//   - The ringer reads 0: the sleeper's look comes later, and finds the change.
//   - The ringer reads 1: it adds to `rings_`, which the sleeper has read before all of that. The
//     futex then finds another number and does not sleep, or it sleeps already and is woken.
// Wake does the same with `wake` in place of the change, for a thread of the sleeper's own process.
// What the caller of Wake has stored before is visible to the sleeper's next look, because the
// sleeper takes `wake` out by a read-modify-write: it reads that store, or comes before it, and
// then the futex does not sleep.
// doorbell_model_test.cc runs all of this in every order.
//
// Threads: Park by one; the others by any, of any process. Owns: nothing; it lies in shared memory,
// which is 0 at first.
template <typename Sync>
class BasicDoorbell {
 public:
  template <typename T>
  using Atomic = typename Sync::template Atomic<T>;

  // Wakes the rank if it is asleep, or about to be. Call it after showing what it waits for.
  // Blocks: never.
  void Ring(const Atomic<uint32_t>& asleep) {
    if (asleep.load() != 0) RingIfParked();
  }
  // The same for a caller that has looked at `asleep` itself.
  void RingIfParked() {
    if (parked_.load() != 0) RingAlways();
  }
  // Whether or not the rank says that it is asleep: for what it may never miss.
  void RingAlways() {
    rings_.fetch_add(1);
    Sync::Wake(&rings_, kAllSleepers, FutexScope::kShared);
  }
  // Ends the rank's current or next Park, from its own process.
  void Wake(Atomic<bool>& wake) {
    wake.store(true);
    RingIfParked();
  }

  // Sleeps until the bell is rung, unless `wake` is set or `look()` finds something. May return for
  // no reason: the caller looks again. `at_most()`: how long to sleep, asked before the sleep.
  // Blocks: at most so long.
  template <typename Look, typename AtMost>
  void Park(Atomic<uint32_t>& asleep, Atomic<bool>& wake, Look look, AtMost at_most) {
    const uint32_t before = rings_.load();
    // Whoever shows something after this rings; what was shown before, the look finds.
    parked_.store(1);
    asleep.fetch_add(1);
    if (!wake.exchange(false) && !look()) {
      Sync::Wait(&rings_, before, at_most(), FutexScope::kShared);
      wake.exchange(false);  // reads what a Wake has stored, so that what came before it is visible
    }
    asleep.fetch_sub(1);
    parked_.store(0);
  }

 private:
  Atomic<uint32_t> rings_{0};   // the futex's word, counts rings
  Atomic<uint32_t> parked_{0};  // 1: asleep, or about to be
};

using Doorbell = BasicDoorbell<internal::RealSync>;

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_DOORBELL_H_
