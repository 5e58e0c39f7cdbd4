// The pending timers of one executor.
#ifndef PELTON_CORE_ACTOR_TIMER_QUEUE_H_
#define PELTON_CORE_ACTOR_TIMER_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "core/actor/actor_cell.h"
#include "core/actor/executor.h"
#include "core/actor/mailbox.h"
#include "core/actor/ref_ptr.h"
#include "core/base/sync.h"

namespace pelton::internal {

// A heap of messages to be delivered; those for the same time in the order they were added. Entries
// are reused: no allocation in steady state.
// Threads: any. Owns: the messages, until delivered or cancelled; itself, by count.
class TimerQueue final : public TimerSource {
 public:
  static RefPtr<TimerQueue> Make() { return RefPtr<TimerQueue>::Adopt(new TimerQueue); }

  void Ref() override { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() override;

  // `node` becomes the queue's. Sets `*is_next` if it is now the first to be due.
  Timer Add(absl::Time when, ActorCell& target, MessageNode* node, bool* is_next);
  bool Cancel(uint32_t entry, uint32_t use) override;

  // When the next one is due; infinite if there is none. Takes no lock.
  absl::Time NextTime() const {
    const int64_t nanos = next_nanos_.load(std::memory_order_acquire);
    return nanos == kNever ? absl::InfiniteFuture() : absl::FromUnixNanos(nanos);
  }
  // Delivers what is due at `now`; true if anything was.
  bool DeliverDue(absl::Time now);
  // Discards everything.
  void Clear();

 private:
  static constexpr int64_t kNever = INT64_MAX;
  struct Entry {
    absl::Time when;
    uint64_t sequence = 0;
    RefPtr<ActorCell> target;
    MessageNode* node = nullptr;
    uint32_t use = 0;
    uint32_t place = 0;  // in heap_
  };

  TimerQueue() = default;
  ~TimerQueue() { Clear(); }
  bool Before(uint32_t a, uint32_t b) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Place(uint32_t place, uint32_t entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SiftUp(uint32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SiftDown(uint32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the entry at `place` out of the heap and frees it for reuse.
  Entry Remove(uint32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PublishNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<uint32_t> refs_{1};
  std::atomic<int64_t> next_nanos_{kNever};
  Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> heap_ ABSL_GUARDED_BY(mutex_);
  uint64_t sequence_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_TIMER_QUEUE_H_
