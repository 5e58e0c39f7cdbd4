#include "comm/control/steady_time.h"

#include <chrono>

#include "absl/time/clock.h"

namespace pelton {

absl::Time SteadyNow() {
  using SteadyClock = std::chrono::steady_clock;
  static const absl::Time wall_start = absl::Now();
  static const SteadyClock::time_point start = SteadyClock::now();
  return wall_start + absl::FromChrono(SteadyClock::now() - start);
}

absl::Time ToWallTime(absl::Time steady) { return absl::Now() + (steady - SteadyNow()); }

}  // namespace pelton
