// What keeps rounds apart that do not belong together.
#ifndef PELTON_CORE_BUCKET_ROUND_MODE_H_
#define PELTON_CORE_BUCKET_ROUND_MODE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "core/base/ids.h"

namespace pelton {

// In which mode the forward passes were made that a round's tensors come from. Ranks in different
// modes are at different points of their program: their tensors must not be added up.
enum class RoundMode : uint8_t { kTraining, kEvaluation };

inline absl::string_view NameOf(RoundMode mode) {
  return mode == RoundMode::kTraining ? "training" : "evaluation";
}

// The mode travels in an operation's bucket number, which ranks compare anyway. Above every bucket
// of a plan (limits::kMaxTensorsPerPlan); no bucket, a negative number, is of training.
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

#endif  // PELTON_CORE_BUCKET_ROUND_MODE_H_
