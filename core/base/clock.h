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
  // The machine's clock; lives as long as the process.
  static const Clock& Real();
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_CLOCK_H_
