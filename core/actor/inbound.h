// The actors that other threads have scheduled, until the thread they belong to takes them.
#ifndef PELTON_CORE_ACTOR_INBOUND_H_
#define PELTON_CORE_ACTOR_INBOUND_H_

#include <atomic>
#include <utility>

#include "core/actor/sync_policy.h"

namespace pelton::internal {

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

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_INBOUND_H_
