// In which order buckets that are ready go to a channel.
#ifndef PELTON_CORE_BUCKET_RELEASE_POLICY_H_
#define PELTON_CORE_BUCKET_RELEASE_POLICY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/ids.h"

namespace pelton {

// Decides from what is the same on all ranks, so that all release in the same order whatever order
// buckets become ready in (ORDER-1). Threads: the scheduler's turns. Owns: what its subclass says.
class ReleasePolicy {
 public:
  virtual ~ReleasePolicy() = default;
  // A round of `bucket_count` buckets begins.
  virtual void Reset(int32_t bucket_count) = 0;
  virtual void OnReady(BucketId bucket) = 0;
  // The next bucket to release, if it may be released already.
  virtual std::optional<BucketId> Next() = 0;
  // The bucket that everything waits for; nothing once all are released.
  virtual std::optional<BucketId> Awaited() const = 0;
};

// Buckets in the plan's order.
// Threads: as ReleasePolicy. Owns: a bit per bucket.
class PlanOrderPolicy final : public ReleasePolicy {
 public:
  void Reset(int32_t bucket_count) override {
    ready_.assign(static_cast<size_t>(bucket_count), false);
    next_ = 0;
  }
  void OnReady(BucketId bucket) override { ready_[static_cast<size_t>(bucket.value())] = true; }
  std::optional<BucketId> Next() override {
    if (next_ == ready_.size() || !ready_[next_]) return std::nullopt;
    return BucketId(static_cast<int32_t>(next_++));
  }
  std::optional<BucketId> Awaited() const override {
    if (next_ == ready_.size()) return std::nullopt;
    return BucketId(static_cast<int32_t>(next_));
  }

 private:
  std::vector<bool> ready_;
  size_t next_ = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_BUCKET_RELEASE_POLICY_H_
