// One caller after the other, each of which waits until a deadline.
#ifndef PELTON_CORE_BASE_TURN_H_
#define PELTON_CORE_BASE_TURN_H_

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace pelton {

// For what lasts longer than a thread may wait without an end: the work between a Take and its
// GiveBack may itself wait for other ranks. The thread that gives a turn back may be another one
// than that which took it. No order among those that wait.
// Threads: any. Owns: nothing.
class ABSL_LOCKABLE Turn {
 public:
  Turn() = default;
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // False: somebody has kept it until `deadline` (of Clock::Real()). Blocks: until then.
  [[nodiscard]] bool Take(absl::Time deadline) ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true);
  // To be called once for each turn.
  void GiveBack() ABSL_UNLOCK_FUNCTION();

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kTaken = 1;
  static constexpr uint32_t kAwaited = 2;  // taken, and a thread may sleep

  std::atomic<uint32_t> state_{kFree};
};

// Gives a turn that was taken back at the end of a scope.
// Threads: the one that made it. Owns: the turn.
class ABSL_SCOPED_LOCKABLE TurnHolder {
 public:
  explicit TurnHolder(Turn* turn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn) : turn_(turn) {}
  ~TurnHolder() ABSL_UNLOCK_FUNCTION() { turn_->GiveBack(); }
  TurnHolder(const TurnHolder&) = delete;
  TurnHolder& operator=(const TurnHolder&) = delete;

 private:
  Turn* const turn_;
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_TURN_H_
