// What keeps rounds apart that do not belong together.
#ifndef PELTON_CORE_PLAN_ROUND_MODE_H_
#define PELTON_CORE_PLAN_ROUND_MODE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "core/base/ids.h"

namespace pelton {

// In which mode the forward passes were made that a round's tensors come from. Ranks in different
// modes are at different points of their program: their tensors must not be added up.
//
// kCollecting is of rounds that ranks do not share (Schedule::ranks_share_rounds), and a rank's
// last one before it stops. Its stages begin behind a barrier of all ranks, at which the other
// rounds of all of them had ended: they take in what has been sent to this rank, and send nothing,
// because no rank would take it in. What comes while they run is of a rank that has been resumed
// already, and may as well wait for this rank's next round.
enum class RoundMode : uint8_t { kTraining, kEvaluation, kCollecting };

inline absl::string_view NameOf(RoundMode mode) {
  switch (mode) {
    case RoundMode::kTraining:
      return "training";
    case RoundMode::kEvaluation:
      return "evaluation";
    case RoundMode::kCollecting:
      return "collecting";
  }
  return "unknown mode";
}

// The mode travels in an operation's bucket number, which ranks compare anyway. Above every bucket
// of a plan (limits::kMaxTensorsPerPlan); no bucket, a negative number, is of training, as is a
// round that collects, which the barrier before it keeps apart.
inline constexpr int32_t kEvaluationBit = 1 << 28;

inline RoundMode ModeOf(BucketId bucket) {
  return bucket.value() >= kEvaluationBit ? RoundMode::kEvaluation : RoundMode::kTraining;
}
inline BucketId InMode(BucketId bucket, RoundMode mode) {
  return mode == RoundMode::kEvaluation ? BucketId(bucket.value() | kEvaluationBit) : bucket;
}
inline BucketId WithoutMode(BucketId bucket) {
  return ModeOf(bucket) == RoundMode::kEvaluation ? BucketId(bucket.value() & ~kEvaluationBit)
                                                  : bucket;
}

}  // namespace pelton

#endif  // PELTON_CORE_PLAN_ROUND_MODE_H_
