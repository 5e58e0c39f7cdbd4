// What the thread of a ThreadExecutor does between two parks.
#ifndef PELTON_CORE_ACTOR_THREAD_LOOP_H_
#define PELTON_CORE_ACTOR_THREAD_LOOP_H_

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/actor/actor_cell.h"
#include "core/actor/ref_ptr.h"
#include "core/actor/sync_policy.h"
#include "core/actor/timer_queue.h"
#include "core/base/clock.h"

namespace pelton::internal {

// The actors that other threads have scheduled, until the thread they belong to takes them.
// A stack of cells, linked through their `next_scheduled`.
//
// No wake-up is lost: whoever pushes onto an empty stack kicks the thread, and a kick that comes
// before the thread parks ends that park. The others need not: the stack stays non-empty from that
// push until the thread takes all of it, so the kick before theirs is still to be seen.
// Threads: Push from any; TakeAll from one. Owns: the turns of the cells in it.
template <typename Cell, typename Sync = RealSync>
class Inbound {
 public:
  // True if the thread must be kicked.
  bool Push(Cell& cell) {
    Cell* head = newest_.load(std::memory_order_relaxed);
    do {
      cell.next_scheduled = head;
    } while (!newest_.compare_exchange_weak(head, &cell));
    return head == nullptr;
  }

  // All cells as a chain, the oldest first; null if there are none.
  Cell* TakeAll() {
    if (newest_.load(std::memory_order_relaxed) == nullptr) return nullptr;
    Cell* newest = newest_.exchange(nullptr, std::memory_order_acquire);
    Cell* oldest = nullptr;
    while (newest != nullptr)
      oldest = std::exchange(newest, std::exchange(newest->next_scheduled, oldest));
    return oldest;
  }

 private:
  typename Sync::template Atomic<Cell*> newest_{nullptr};
};

// Gives turns to actors and decides whether their thread may park. It waits for nothing itself, so
// that a test runs the same decisions in virtual time and in every order.
// Threads: one, where a method does not say otherwise. Owns: the turns of the actors in its queues.
class ThreadLoop {
 public:
  ThreadLoop(TimerQueue& timers, const Clock& clock) : timers_(timers), clock_(clock) {}

  // Gives `cell` a turn, on behalf of another thread. True if the loop's thread must be kicked.
  // Threads: any.
  bool PushFromOutside(ActorCell& cell);
  // The same on the loop's thread.
  void Push(ActorCell& cell) { queue_.Push(cell); }

  // Gives the turns that are due and polls once. True if the loop must go on at once: something
  // moved, or an actor is runnable.
  bool RunOnce();
  // The last look before a park: delivers the timers that are due. True if any was.
  bool DeliverDueTimers();
  // Whether an actor has work in flight that must be polled.
  bool has_work_in_flight() const { return !polled_.empty(); }
  // How long the thread may park. To be called only after RunOnce and DeliverDueTimers were false:
  // a loop that parks with a runnable actor is a broken invariant, which ends the process.
  absl::Duration LongestPark() const;

 private:
  struct Polled {
    RefPtr<ActorCell> cell;
    absl::Duration max_park;
  };

  void TakeInbound();
  bool RunScheduled();
  bool PollAll();
  bool GlanceAtTimers();
  // One turn; keeps the cell scheduled or on the poll list as it needs.
  TurnOutcome RunTurn(ActorCell& cell);

  TimerQueue& timers_;
  const Clock& clock_;
  Inbound<ActorCell> inbound_;
  CellQueue queue_;
  std::vector<Polled> polled_;
  uint32_t passes_ = 0;
};

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_THREAD_LOOP_H_
