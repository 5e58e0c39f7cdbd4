// A word of memory that a trainer and its daemon both see.
#ifndef PELTON_BACKEND_LINK_PAGE_WORD_H_
#define PELTON_BACKEND_LINK_PAGE_WORD_H_

#include <atomic>

#include "core/actor/wait_hook.h"

namespace pelton {

// Comes after each access to what both sides see: in a simulation the other one may have its turn
// here, and either may die. Else it costs a load. Blocks: never.
inline void PauseInSimulation() {
  if (!WaitHook::IsAnyInstalled()) return;
  if (WaitHook* const hook = WaitHook::Current()) hook->Pause();
}

// An atomic of the page, with a pause after each access.
// Threads: any. Owns: the value.
template <typename T>
class PageWord {
 public:
  T load(std::memory_order order = std::memory_order_seq_cst) const {
    const T value = word_.load(order);
    PauseInSimulation();
    return value;
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    word_.store(value, order);
    PauseInSimulation();
  }

 private:
  std::atomic<T> word_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_PAGE_WORD_H_
