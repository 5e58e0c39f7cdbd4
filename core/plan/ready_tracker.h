// Counts the tensors of each bucket that are ready, without locks.
#ifndef PELTON_CORE_PLAN_READY_TRACKER_H_
#define PELTON_CORE_PLAN_READY_TRACKER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/plan/bucket.h"
#include "core/plan/plan.h"
#include "core/plan/round_mode.h"

namespace pelton {

// Is told of buckets whose last tensor has become ready.
// Threads: any. Owns: what its subclass says.
class ReadySink {
 public:
  virtual ~ReadySink() = default;
  // Called once per bucket and round, by the thread that marked its last slot. Cannot fail. Blocks:
  // never.
  virtual void OnBucketReady(BucketId bucket, Round round) = 0;
};

// Rounds follow one another: marks, EndRound (or every slot marked), OpenRound. Nothing is reset in
// between: slots remember the round of their last mark, and a bucket's count only grows.
// Threads: MarkReady and the queries by any; the others by one thread at a time, not together with
// a MarkReady. Owns: the counts; plan, storage and sink are borrowed and outlive it.
class ReadyTracker {
 public:
  // `first` is the number of the round that is open at once.
  ReadyTracker(const Plan& plan, BucketStorage& storage, ReadySink& sink, Round first);
  ReadyTracker(const ReadyTracker&) = delete;
  ReadyTracker& operator=(const ReadyTracker&) = delete;

  // The slot's elements are final, in the flat part. No lock, no allocation, no message unless it
  // is the bucket's last.
  // Blocks: never. Errors, each naming what applies of tensor, bucket and round: InvalidArgument:
  // unknown slot, or a standalone one without its place; AlreadyExists: ready twice in a round;
  // FailedPrecondition: the last round's results have not been waited for.
  absl::Status MarkReady(SlotId slot);
  // The same for a standalone slot, whose elements lie at `data`. Errors: also InvalidArgument: the
  // slot is not standalone, or `data` is null.
  absl::Status MarkReady(SlotId slot, void* data);
  // As MarkReady, for a slot that this rank did not use in this round but whose elements count all
  // the same: zeros, or what all ranks hold already. `data` is null unless the slot is standalone.
  absl::Status MarkUnused(SlotId slot, void* data);

  // Slots not marked in the open round, in plan order.
  std::vector<SlotId> UnmarkedSlots() const;
  // Slots of `bucket` not marked in `round`.
  std::vector<SlotId> UnmarkedSlotsOf(BucketId bucket, Round round) const;

  // Marks what is not marked as unused, with zeros (ALL-1), so that every bucket becomes ready; the
  // round takes no further marks. Errors: the device's, on which zeros could not be put.
  absl::Status EndRound();
  // The same, but the sink is not told, because the round has failed elsewhere.
  void AbandonRound();
  // As if no slot had been marked in the open round but those of `buckets`, all of them. Not
  // together with a MarkReady.
  void TakeBackAllBut(absl::Span<const BucketId> buckets);
  // Opens the next round. The last one must have ended.
  void OpenRound();

  // Of the round that is open and of later ones; set before its first mark.
  void set_mode(RoundMode mode) { mode_.store(mode, std::memory_order_relaxed); }
  RoundMode mode() const { return mode_.load(std::memory_order_relaxed); }

  Round round() const { return Round(round_.load(std::memory_order_acquire)); }
  // Whether this rank marked the slot ready (not: unused) in its last round.
  bool UsedHere(SlotId slot) const {
    return (words_[slot.value()].load(std::memory_order_relaxed) & kUsed) != 0;
  }
  // The slots in the order of their marks in the last round; rank 0's is the basis of the next
  // plan.
  std::vector<SlotId> ReadyOrder() const;

 private:
  static constexpr uint64_t kUsed = 1;

  absl::Status MarkFlat(SlotId slot, uint64_t used);
  absl::Status MarkStandalone(SlotId slot, void* data, uint64_t used);
  absl::Status Claim(SlotId slot, uint64_t round, uint64_t used);
  void CountDown(SlotId slot, uint64_t round);
  void TakeBack(BucketId bucket);
  absl::Status UnknownSlot(SlotId slot) const;
  absl::Status NotOpen(SlotId slot) const;
  absl::Status MarkedTwice(SlotId slot, uint64_t round) const;
  std::string NameOf(SlotId slot) const;
  absl::Status MarkRestUnused(bool tell_sink);

  const Plan& plan_;
  BucketStorage& storage_;
  ReadySink& sink_;
  const uint64_t first_round_;
  std::atomic<uint64_t> round_;  // that is open or has ended last
  std::atomic<bool> open_{true};
  std::atomic<RoundMode> mode_{RoundMode::kTraining};
  // By slot: twice the round of the last mark, plus kUsed.
  std::unique_ptr<std::atomic<uint64_t>[]> words_;
  // By bucket: marks since the first round.
  struct alignas(64) Count {
    std::atomic<uint64_t> marks{0};
  };
  std::unique_ptr<Count[]> counts_;
  // Each round has as many marks as there are slots, so the place of a mark in its round is its
  // number modulo their count.
  std::unique_ptr<std::atomic<int32_t>[]> order_;
  alignas(64) std::atomic<uint64_t> next_mark_{0};
};

}  // namespace pelton

#endif  // PELTON_CORE_PLAN_READY_TRACKER_H_
