// What a round would take under another plan, from what was measured under this one.
#ifndef PELTON_CORE_TUNING_ROUND_ESTIMATE_H_
#define PELTON_CORE_TUNING_ROUND_ESTIMATE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/plan.h"
#include "core/round/round_sight.h"

namespace pelton {

// One bucket on the wire. Threads: a value. Owns: nothing.
struct BucketSample {
  uint64_t size_bytes = 0;
  double seconds = 0;
};

// The time of a bucket: latency + size / bandwidth. Threads: a value. Owns: nothing.
struct BucketCost {
  double latency_s = 0;
  double seconds_per_byte = 0;
  bool is_split_assumed = false;  // no two samples differed enough in size to tell the two apart

  double Of(uint64_t size_bytes) const {
    return latency_s + static_cast<double>(size_bytes) * seconds_per_byte;
  }
};

// The median of `values`, which it may reorder; 0 of none.
double MedianOf(std::vector<double>& values);

// What the exchange of a bucket moves: its flat part and its standalone tensors. Units: bytes.
uint64_t SizeOf(const Plan& plan, const BucketLayout& bucket);

// The round that has ended, bucket by bucket: from when it was ready and the one before it was
// complete, to its end. Buckets of which that is not known are left out.
std::vector<BucketSample> SamplesOf(const Plan& plan, const BucketTimes& times);

// Fits `samples` robustly: the slope is the median of those between any two sizes, the latency the
// median of what is left. Neither is negative. Where all sizes are about alike, which tells the two
// apart by nothing, the latency is taken for kUnknownLatency at most, and the result says so.
// Source: Theil and Sen's estimator.
BucketCost FitBucketCost(absl::Span<const BucketSample> samples);
inline constexpr double kUnknownLatency = 50e-6;  // Units: seconds.

// When the last bucket would be complete: each begins when its last tensor is ready and the one
// before it is complete. `ready_s`: by slot, from the same moment on as the result. Takes a pass
// over the slots, no allocation.
double EndOfRound(const Plan& plan, absl::Span<const double> ready_s, const BucketCost& cost);

// The plans with the tensors of `plan` in `order`, for bucket sizes that are powers of two from
// `smallest_bytes` to `largest_bytes`: one for each way to fill the buckets, at the smallest such
// size, by growing size. `current` is among them, at its own size, whichever that is.
struct CandidatePlans {
  std::vector<Plan> plans;
  size_t current = 0;  // the one that is filled as the plan in force
};
CandidatePlans CandidatesFor(const Plan& plan, absl::Span<const SlotId> order,
                             uint64_t smallest_bytes, uint64_t largest_bytes);

}  // namespace pelton

#endif  // PELTON_CORE_TUNING_ROUND_ESTIMATE_H_
