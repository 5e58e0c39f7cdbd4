#include "core/base/test_wall_clock_step.h"

#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "absl/time/clock.h"

namespace {

std::atomic<int64_t> wall_clock_offset_seconds{0};

}  // namespace

// In the place of the C library's: every library of a test that links this reads it.
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (clock == CLOCK_REALTIME) now->tv_sec += wall_clock_offset_seconds.load();
  return result;
}

namespace pelton {
namespace {

void StepBy(absl::Duration step) {
  const absl::Time before = absl::Now();
  wall_clock_offset_seconds += absl::ToInt64Seconds(step);
  while (absl::AbsDuration(absl::Now() - before) < absl::AbsDuration(step) / 2) sched_yield();
}

}  // namespace

WallClockStep::WallClockStep(absl::Duration step) : step_(step) { StepBy(step); }
WallClockStep::~WallClockStep() { StepBy(-step_); }

}  // namespace pelton
