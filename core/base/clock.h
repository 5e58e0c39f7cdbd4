// The seam to time: everything that waits or stamps asks a Clock, so that tests run in virtual
// time.
#ifndef PELTON_CORE_BASE_CLOCK_H_
#define PELTON_CORE_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace pelton {

// Threads: any. Owns: nothing.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  // Real time that passes evenly: the wall clock's when the process first asked, and what a steady
  // clock has counted since. A step of the wall clock (NTP, `date -s`, a virtual machine that goes
  // on) makes no deadline pass and puts none off. Its times compare with each other only. Lives as
  // long as the process.
  static const Clock& Real();
};

// `time` of Clock::Real() as the wall clock would show it, for what waits by that one.
absl::Time ToWallTime(absl::Time time);

}  // namespace pelton

#endif  // PELTON_CORE_BASE_CLOCK_H_
