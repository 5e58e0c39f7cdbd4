// Steps this process's wall clock, as NTP or an administrator steps the machine's.
#ifndef PELTON_CORE_BASE_TEST_WALL_CLOCK_STEP_H_
#define PELTON_CORE_BASE_TEST_WALL_CLOCK_STEP_H_

#include "absl/time/time.h"

namespace pelton {

// While it lives, the process reads a wall clock that is off by `step`; the steady clock is as
// ever. Blocks: until absl::Now(), which samples that clock now and then, shows the step. Threads:
// one at a time. Owns: the step.
class WallClockStep {
 public:
  explicit WallClockStep(absl::Duration step);
  ~WallClockStep();
  WallClockStep(const WallClockStep&) = delete;
  WallClockStep& operator=(const WallClockStep&) = delete;

 private:
  const absl::Duration step_;
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_TEST_WALL_CLOCK_STEP_H_
