#include "core/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace pelton {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Threads: any. Owns: nothing.
class RealClock : public Clock {
 public:
  absl::Time Now() const override {
    return wall_start_ + absl::FromChrono(SteadyClock::now() - start_);
  }

 private:
  const absl::Time wall_start_ = absl::Now();
  const SteadyClock::time_point start_ = SteadyClock::now();
};

}  // namespace

const Clock& Clock::Real() {
  static const RealClock clock;
  return clock;
}

absl::Time ToWallTime(absl::Time time) { return absl::Now() + (time - Clock::Real().Now()); }

}  // namespace pelton
