// A deadline that stands still while a rank is awaited.
#ifndef PELTON_CORE_BASE_MOVING_DEADLINE_H_
#define PELTON_CORE_BASE_MOVING_DEADLINE_H_

#include "absl/time/time.h"
#include "core/base/standstill.h"

namespace pelton {

// Comes later by what a standstill adds after the deadline was made. Whoever waits for it sleeps
// until At of the time that it is, and has missed it where At is not later after that.
// Threads: a value. Owns: nothing; the standstill outlives it.
class MovingDeadline {
 public:
  // One that never moves. Implicit, because most deadlines do not.
  MovingDeadline(absl::Time deadline) : deadline_(deadline) {}
  // Null: it never moves.
  MovingDeadline(absl::Time deadline, const Standstill* standstill, absl::Time now)
      : deadline_(deadline),
        standstill_(standstill),
        stood_(standstill == nullptr ? absl::ZeroDuration() : standstill->Total(now)) {}

  // Where it lies by what has been added until `now`.
  absl::Time At(absl::Time now) const {
    return standstill_ == nullptr ? deadline_ : deadline_ + (standstill_->Total(now) - stood_);
  }
  MovingDeadline operator+(absl::Duration later) const {
    MovingDeadline sum = *this;
    sum.deadline_ += later;
    return sum;
  }
  const Standstill* standstill() const { return standstill_; }

 private:
  absl::Time deadline_;
  const Standstill* standstill_ = nullptr;
  absl::Duration stood_;
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_MOVING_DEADLINE_H_
