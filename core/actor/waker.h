// Parks one thread so that any other, or another process, can wake it.
#ifndef PELTON_CORE_ACTOR_WAKER_H_
#define PELTON_CORE_ACTOR_WAKER_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "core/actor/sync_policy.h"
#include "core/base/sync.h"

namespace pelton {

namespace internal {

// A binary semaphore on one futex word: a kick is remembered until the next park, kicks do not add
// up. The word may lie in shared memory, where a peer process kicks it through a waker of its own.
// Threads: Kick from any; Park from one. Owns: its word, unless one was given.
template <typename Sync>
class BasicWaker {
  using Word = typename Sync::template Atomic<uint32_t>;

 public:
  BasicWaker() : word_(&own_word_), scope_(FutexScope::kProcess) {}
  // Uses `word`, which must be 0 at first and outlive this object.
  explicit BasicWaker(Word* word) : word_(word), scope_(FutexScope::kShared) {}
  BasicWaker(const BasicWaker&) = delete;
  BasicWaker& operator=(const BasicWaker&) = delete;

  // Ends the current park, or the next one at once. What the caller wrote before is visible after
  // that park. Costs a system call only if a thread is parked.
  // Blocks: never.
  void Kick() {
    if (word_->exchange(kKicked) == kParked) Sync::Wake(word_, 1, scope_);
  }

  // Sleeps until kicked; true if it was, false if `at_most` passed (or for no reason).
  // Blocks: at most `at_most`.
  bool Park(absl::Duration at_most) {
    uint32_t expected = kNone;
    if (word_->compare_exchange_strong(expected, kParked)) {
      Sync::Wait(word_, kParked, at_most, scope_);
    }
    return word_->exchange(kNone) == kKicked;
  }

 private:
  static constexpr uint32_t kNone = 0;
  static constexpr uint32_t kKicked = 1;
  static constexpr uint32_t kParked = 2;

  Word own_word_{kNone};
  Word* const word_;
  const FutexScope scope_;
};

}  // namespace internal

using Waker = internal::BasicWaker<internal::RealSync>;

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_WAKER_H_
