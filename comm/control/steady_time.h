// Time that passes evenly, whatever is done to the machine's clock meanwhile.
#ifndef PELTON_COMM_CONTROL_STEADY_TIME_H_
#define PELTON_COMM_CONTROL_STEADY_TIME_H_

#include "absl/time/time.h"

namespace pelton {

// The wall clock's time when the process first asked, and what a steady clock has counted since: a
// step of the wall clock must not declare every rank dead. Compares with other such times only.
absl::Time SteadyNow();

// The same moment for those who wait by the wall clock.
absl::Time ToWallTime(absl::Time steady);

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_STEADY_TIME_H_
