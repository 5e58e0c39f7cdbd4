// What can be seen of a model's rounds from outside: how far the open one is, and when its buckets
// were ready and complete.
#ifndef PELTON_CORE_ROUND_ROUND_SIGHT_H_
#define PELTON_CORE_ROUND_ROUND_SIGHT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/ids.h"

namespace pelton {

// Of the round that is open, at one moment. Threads: a value. Owns: its texts.
struct RoundSight {
  Round round;
  int32_t bucket_count = 0;
  int32_t ready_count = 0;     // buckets whose tensors are all marked on this rank
  int32_t complete_count = 0;  // buckets whose results are there
  // The bucket that communicates now, with its tensors and its operation; "": none does.
  std::string work;
  absl::Time work_since = absl::InfiniteFuture();
  std::vector<Rank> missing;  // that have not come to that operation, as far as the wire can tell
  // The bucket that is next, and which of its tensors this rank has yet to mark, if it has any; "":
  // none, or no bucket of the round is ready and nobody waits.
  std::string awaited;
  // Since when the trainer waits for the round; InfiniteFuture: it does not.
  absl::Time waited_since = absl::InfiniteFuture();
  // When a bucket was last ready, or its communication last over; InfinitePast: never.
  absl::Time moved_at = absl::InfinitePast();
  absl::Time now;  // of the clock that the other times are of

  // A bucket is ready, or the trainer waits. Between rounds it is not, nor while a round's first
  // bucket is not ready.
  bool is_under_way() const { return ready_count > 0 || waited_since < absl::InfiniteFuture(); }
};

// When the buckets of a round were ready and when they were complete. Written by the scheduler,
// read by the trainer between rounds: then they are those of the round that has ended. Costs a
// relaxed load for each bucket while it is off. Threads: Begin, End and the queries by one thread
// at a time; Ready and Done by the scheduler's turns. Owns: the times.
class BucketTimes {
 public:
  // On, for plans of at most `most_buckets`, from the next round on.
  void Begin(size_t most_buckets) {
    if (times_ == nullptr) {
      count_ = most_buckets;
      times_ = std::make_unique<Times[]>(most_buckets);
    }
    on_.store(true, std::memory_order_release);
  }
  void End() { on_.store(false, std::memory_order_release); }
  bool on() const { return on_.load(std::memory_order_acquire); }

  void Ready(BucketId bucket, absl::Time now) {
    if (on()) Store(bucket, &Times::ready_ns, now);
  }
  void Done(BucketId bucket, absl::Time now) {
    if (on()) Store(bucket, &Times::done_ns, now);
  }

  // Units: nanoseconds since the epoch of the scheduler's clock; 0: never.
  int64_t ready_ns(BucketId bucket) const { return Load(bucket, &Times::ready_ns); }
  int64_t done_ns(BucketId bucket) const { return Load(bucket, &Times::done_ns); }

 private:
  // Atomic because an abort may end buckets after their round.
  struct Times {
    std::atomic<int64_t> ready_ns{0};
    std::atomic<int64_t> done_ns{0};
  };

  void Store(BucketId bucket, std::atomic<int64_t> Times::*which, absl::Time now) {
    const auto i = static_cast<size_t>(bucket.value());
    if (i < count_) (times_[i].*which).store(absl::ToUnixNanos(now), std::memory_order_relaxed);
  }
  int64_t Load(BucketId bucket, std::atomic<int64_t> Times::*which) const {
    const auto i = static_cast<size_t>(bucket.value());
    return i < count_ ? (times_[i].*which).load(std::memory_order_relaxed) : 0;
  }

  std::atomic<bool> on_{false};
  size_t count_ = 0;
  std::unique_ptr<Times[]> times_;  // never replaced
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_ROUND_SIGHT_H_
