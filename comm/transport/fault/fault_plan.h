// Which faults a wrapped transport shows, and when: a pure function of the plan and its seed.
#ifndef PELTON_COMM_TRANSPORT_FAULT_FAULT_PLAN_H_
#define PELTON_COMM_TRANSPORT_FAULT_FAULT_PLAN_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "core/base/split_mix.h"

namespace pelton {

// Counts are of one communicator on one rank, from 1; 0 means never. Probabilities are in [0, 1].
// Threads: a value. Owns: nothing.
struct FaultPlan {
  uint64_t seed = 0;
  uint64_t fail_launch = 0;  // this Launch is refused, as if memory had run out
  uint64_t kill_launch = 0;  // at this Launch the connection breaks: all later ones fail, too
  double skip_progress = 0;  // a Progress does nothing
  double drop_wake = 0;      // a Wake is lost
};

// Draws the faults of one communicator. Threads: any; of draws that come at once each gets a number
// of its own. Owns: how many there were.
class FaultDice {
 public:
  // `stream` makes the draws of different communicators and ranks independent.
  FaultDice(const FaultPlan& plan, uint64_t stream)
      : plan_(plan), seed_(plan.seed * 1000003 + stream) {}

  // What the next Launch meets: OK, ResourceExhausted (fail_launch) or Unavailable (kill_launch).
  absl::Status OnLaunch();
  bool SkipsProgress() { return Draws(plan_.skip_progress); }
  bool DropsWake() { return Draws(plan_.drop_wake); }

 private:
  bool Draws(double probability) {
    if (probability <= 0) return false;
    const uint64_t number = SplitMix(seed_, draws_.fetch_add(1, std::memory_order_relaxed));
    return static_cast<double>(number >> 11) * 0x1p-53 < probability;
  }

  const FaultPlan plan_;
  const uint64_t seed_;
  std::atomic<uint64_t> draws_{0};
  std::atomic<uint64_t> launches_{0};
};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_FAULT_FAULT_PLAN_H_
