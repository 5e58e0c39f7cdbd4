#include "comm/window/edge_mutex.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/long_wait.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// The kernel's wait goes by the wall clock, so no wait is long.
constexpr absl::Duration kLook = kInterruptInterval;

timespec WallTime(absl::Time time) { return absl::ToTimespec(ToWallTime(time)); }

}  // namespace

EdgeMutex::EdgeMutex() {
  pthread_mutexattr_t attributes;
  PELTON_CHECK(pthread_mutexattr_init(&attributes) == 0);
  PELTON_CHECK(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
  PELTON_CHECK(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
  PELTON_CHECK(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK) == 0);
  PELTON_CHECK(pthread_mutex_init(&mutex_, &attributes) == 0);
  PELTON_CHECK(pthread_mutexattr_destroy(&attributes) == 0);
}

bool EdgeMutex::HasIt(int error, Rank taker) {
  // A slot is whole at any time, so there is nothing to repair after the dead.
  if (error == EOWNERDEAD) PELTON_CHECK(pthread_mutex_consistent(&mutex_) == 0);
  if (error != 0 && error != EOWNERDEAD) return false;
  holder_.store(taker.value(), std::memory_order_relaxed);
  return true;
}

bool EdgeMutex::TryLock(Rank taker) { return HasIt(pthread_mutex_trylock(&mutex_), taker); }

absl::Status EdgeMutex::Lock(Rank taker, const MovingDeadline& deadline) {
  while (true) {
    const absl::Time now = Clock::Real().Now();
    const timespec until = WallTime(std::min(deadline.At(now), now + kLook));
    const int error = pthread_mutex_timedlock(&mutex_, &until);
    if (HasIt(error, taker)) return absl::OkStatus();
    if (error == EDEADLK) {
      return absl::FailedPreconditionError(
          "this thread holds the window's mutex already; call without require_mutex inside "
          "win_mutex");
    }
    if (error != ETIMEDOUT && error != EINTR && error != EAGAIN) {
      return absl::InternalError(absl::StrCat("the window's mutex: ", ErrorText(error)));
    }
    RETURN_IF_ERROR(CheckInterrupt());
    if (now >= deadline.At(now)) return NotInTime();
  }
}

absl::Status EdgeMutex::NotInTime() const {
  return absl::DeadlineExceededError(absl::StrCat("rank ", holder_.load(),
                                                  " holds the window's mutex of this edge and has "
                                                  "not given it back in time"));
}

absl::Status EdgeMutex::Unlock() {
  if (pthread_mutex_unlock(&mutex_) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError("this thread does not hold the window's mutex");
}

}  // namespace pelton
