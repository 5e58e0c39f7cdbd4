// How long deadlines have stood still.
#ifndef PELTON_CORE_BASE_STANDSTILL_H_
#define PELTON_CORE_BASE_STANDSTILL_H_

#include <atomic>

#include "absl/time/time.h"
#include "core/base/sync.h"

namespace pelton {

// While a rank that all others need is away, and another process is awaited in its place, no
// deadline of theirs comes nearer. Whoever enforces one asks how long that has lasted in all, and
// moves its deadline by what has been added since it asked last.
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

}  // namespace pelton

#endif  // PELTON_CORE_BASE_STANDSTILL_H_
