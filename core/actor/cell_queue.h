// A first-in-first-out queue of scheduled actors, linked through the actors themselves.
#ifndef PELTON_CORE_ACTOR_CELL_QUEUE_H_
#define PELTON_CORE_ACTOR_CELL_QUEUE_H_

#include "core/actor/actor_cell.h"

namespace pelton::internal {

// Threads: one at a time. Owns: the turns of the actors in it.
class CellQueue {
 public:
  bool empty() const { return head_ == nullptr; }
  void Push(ActorCell& cell) {
    cell.next_scheduled = nullptr;
    (head_ == nullptr ? head_ : tail_->next_scheduled) = &cell;
    tail_ = &cell;
  }
  ActorCell* Pop() {
    ActorCell* cell = head_;
    if (cell != nullptr) head_ = cell->next_scheduled;
    return cell;
  }

 private:
  ActorCell* head_ = nullptr;
  ActorCell* tail_ = nullptr;  // undefined while empty
};

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_CELL_QUEUE_H_
