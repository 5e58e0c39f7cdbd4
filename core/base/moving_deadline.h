// Deadlines that stand still while a rank is awaited.
#ifndef PELTON_CORE_BASE_MOVING_DEADLINE_H_
#define PELTON_CORE_BASE_MOVING_DEADLINE_H_

#include <atomic>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/sync.h"

namespace pelton {

// How long deadlines have stood still.
// While a rank that all others need is away, and another process is awaited in its place, no
// deadline of theirs comes nearer. Code that enforces a deadline asks how long that has lasted in
// all, and moves the deadline by what has been added since it asked last.
// Threads: any. Owns: the time that has been added up.
class Standstill {
 public:
  Standstill() = default;
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;

  // Several reasons may hold at once: deadlines go on with the last End.
  void Begin(absl::Time now) {
    MutexLock lock(&mutex_);
    if (reasons_++ == 0) began_ = now;
    has_begun_.store(true, std::memory_order_release);
  }
  void End(absl::Time now) {
    MutexLock lock(&mutex_);
    if (--reasons_ == 0) ended_ += now - began_;
  }

  bool stands() const {
    if (!has_begun_.load(std::memory_order_acquire)) return false;
    MutexLock lock(&mutex_);
    return reasons_ > 0;
  }
  // All of it until `now`. Costs one load while there has been none.
  absl::Duration Total(absl::Time now) const {
    if (!has_begun_.load(std::memory_order_acquire)) return absl::ZeroDuration();
    MutexLock lock(&mutex_);
    return reasons_ > 0 ? ended_ + (now - began_) : ended_;
  }

 private:
  std::atomic<bool> has_begun_{false};  // once, ever
  mutable Mutex mutex_;
  int reasons_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time began_ ABSL_GUARDED_BY(mutex_);
  absl::Duration ended_ ABSL_GUARDED_BY(mutex_);
};

// Comes later by what a standstill adds after the deadline was made. A thread that waits for it
// sleeps until At(now), and has missed it if At(now) is not in the future afterwards.
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

namespace internal {
// Asking again where a deadline has moved while somebody waited for it.

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}
}  // namespace internal

// Returns the answer of `call`, which takes the deadline as it stands at the call. It is for
// questions to another process, which says itself that the time is over. `call` is called once more
// if the deadline has moved meanwhile. Blocks: as `call`.
template <typename Call>
auto AskUntil(const MovingDeadline& deadline, const Clock& clock, Call&& call) {
  // The process that is asked may have a clock that is ahead of ours. An answer that is earlier
  // than that tells of another deadline, which has ended what is asked, and would come at once each
  // time.
  constexpr absl::Duration kSlack = absl::Milliseconds(100);
  while (true) {
    const absl::Time until = deadline.At(clock.Now());
    auto answer = call(until);
    const absl::Time now = clock.Now();
    const bool is_its_own =
        absl::IsDeadlineExceeded(internal::StatusOf(answer)) && now + kSlack >= until;
    if (!is_its_own || now >= deadline.At(now)) return answer;
  }
}

}  // namespace pelton

#endif  // PELTON_CORE_BASE_MOVING_DEADLINE_H_
