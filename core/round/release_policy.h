// In which order buckets that are ready go to a channel.
#ifndef PELTON_CORE_ROUND_RELEASE_POLICY_H_
#define PELTON_CORE_ROUND_RELEASE_POLICY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/ids.h"

namespace pelton {

// Buckets in the plan's order, which is the same on all ranks, so that all release in the same
// order whatever order buckets become ready in (ORDER-1). Threads: the scheduler's turns. Owns: a
// bit per bucket.
class PlanOrderPolicy {
 public:
  // A round of `bucket_count` buckets begins.
  void Reset(int32_t bucket_count) {
    ready_.assign(static_cast<size_t>(bucket_count), false);
    next_ = 0;
  }
  void OnReady(BucketId bucket) { ready_[static_cast<size_t>(bucket.value())] = true; }
  // As if the bucket had not been ready; false: it was not, or has been released.
  bool TakeBack(BucketId bucket) {
    const auto i = static_cast<size_t>(bucket.value());
    if (i < next_ || !ready_[i]) return false;
    ready_[i] = false;
    return true;
  }
  // The next bucket to release, if it may be released already.
  std::optional<BucketId> Next() {
    if (next_ == ready_.size() || !ready_[next_]) return std::nullopt;
    return BucketId(static_cast<int32_t>(next_++));
  }
  // The bucket that everything waits for; nothing once all are released.
  std::optional<BucketId> Awaited() const {
    if (next_ == ready_.size()) return std::nullopt;
    return BucketId(static_cast<int32_t>(next_));
  }

 private:
  std::vector<bool> ready_;
  size_t next_ = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_RELEASE_POLICY_H_
