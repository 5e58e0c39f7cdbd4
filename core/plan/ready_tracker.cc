#include "core/plan/ready_tracker.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace pelton {

ReadyTracker::ReadyTracker(const Plan& plan, BucketStorage& storage, ReadySink& sink, Round first)
    : plan_(plan),
      storage_(storage),
      sink_(sink),
      first_round_(first.value()),
      round_(first.value()),
      words_(new std::atomic<uint64_t>[plan.slots().size()]()),
      counts_(new Count[plan.buckets().size()]),
      order_(new std::atomic<int32_t>[plan.slots().size()]()) {
  PELTON_CHECK(first.value() > 0) << "rounds are numbered from 1";
}

absl::Status ReadyTracker::MarkReady(SlotId slot) { return MarkFlat(slot, kUsed); }

absl::Status ReadyTracker::MarkReady(SlotId slot, void* data) {
  return MarkStandalone(slot, data, kUsed);
}

absl::Status ReadyTracker::MarkUnused(SlotId slot, void* data) {
  return data == nullptr ? MarkFlat(slot, 0) : MarkStandalone(slot, data, 0);
}

absl::Status ReadyTracker::MarkFlat(SlotId slot, uint64_t used) {
  if (!plan_.Has(slot)) return UnknownSlot(slot);
  if (plan_.slot(slot).standalone) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(slot), " lies outside of its bucket: its address is needed"));
  }
  const uint64_t round = round_.load(std::memory_order_acquire);
  RETURN_IF_ERROR(Claim(slot, round, used));
  CountDown(slot, round);
  return absl::OkStatus();
}

absl::Status ReadyTracker::MarkStandalone(SlotId slot, void* data, uint64_t used) {
  if (!plan_.Has(slot)) return UnknownSlot(slot);
  if (!plan_.slot(slot).standalone) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(slot), " lies in its bucket: it cannot be elsewhere"));
  }
  if (data == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(NameOf(slot), " is ready at a null address"));
  }
  const uint64_t round = round_.load(std::memory_order_acquire);
  RETURN_IF_ERROR(Claim(slot, round, used));
  storage_.Place(slot, static_cast<std::byte*>(data));
  CountDown(slot, round);
  return absl::OkStatus();
}

absl::Status ReadyTracker::Claim(SlotId slot, uint64_t round, uint64_t used) {
  if (!open_.load(std::memory_order_acquire)) return NotOpen(slot);
  std::atomic<uint64_t>& word = words_[slot.value()];
  uint64_t last = word.load(std::memory_order_relaxed);
  do {
    if (last / 2 == round) return MarkedTwice(slot, round);
  } while (!word.compare_exchange_weak(last, round * 2 + used, std::memory_order_relaxed));
  const uint64_t mark = next_mark_.fetch_add(1, std::memory_order_relaxed);
  order_[mark % plan_.slots().size()].store(slot.value(), std::memory_order_relaxed);
  return absl::OkStatus();
}

void ReadyTracker::CountDown(SlotId slot, uint64_t round) {
  const BucketId bucket = plan_.slot(slot).bucket;
  const uint64_t slots = plan_.bucket(bucket).slots.size();
  // Releases what the producer wrote; the last one acquires what all the others did.
  const uint64_t marks = counts_[bucket.value()].marks.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (marks == (round - first_round_ + 1) * slots) sink_.OnBucketReady(bucket, Round(round));
}

std::vector<SlotId> ReadyTracker::UnmarkedSlots() const {
  std::vector<SlotId> unmarked;
  for (const BucketLayout& bucket : plan_.buckets()) {
    const std::vector<SlotId> slots = UnmarkedSlotsOf(bucket.id, round());
    unmarked.insert(unmarked.end(), slots.begin(), slots.end());
  }
  return unmarked;
}

std::vector<SlotId> ReadyTracker::UnmarkedSlotsOf(BucketId bucket, Round round) const {
  std::vector<SlotId> unmarked;
  for (SlotId slot : plan_.bucket(bucket).slots) {
    if (words_[slot.value()].load(std::memory_order_relaxed) / 2 < round.value()) {
      unmarked.push_back(slot);
    }
  }
  return unmarked;
}

absl::Status ReadyTracker::EndRound() {
  open_.store(false, std::memory_order_release);
  return MarkRestUnused(/*tell_sink=*/true);
}

void ReadyTracker::AbandonRound() {
  open_.store(false, std::memory_order_release);
  MarkRestUnused(/*tell_sink=*/false).IgnoreError();  // puts nothing anywhere
}

absl::Status ReadyTracker::MarkRestUnused(bool tell_sink) {
  absl::Status status;
  const uint64_t round = round_.load(std::memory_order_relaxed);
  for (SlotId slot : UnmarkedSlots()) {
    words_[slot.value()].store(round * 2, std::memory_order_relaxed);
    const uint64_t mark = next_mark_.fetch_add(1, std::memory_order_relaxed);
    order_[mark % plan_.slots().size()].store(slot.value(), std::memory_order_relaxed);
    if (!tell_sink) {
      counts_[plan_.slot(slot).bucket.value()].marks.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    status.Update(storage_.PlaceZeros(slot));
    CountDown(slot, round);
  }
  return status;
}

void ReadyTracker::TakeBackAllBut(absl::Span<const BucketId> buckets) {
  for (const BucketLayout& bucket : plan_.buckets()) {
    if (std::find(buckets.begin(), buckets.end(), bucket.id) == buckets.end()) TakeBack(bucket.id);
  }
}

void ReadyTracker::TakeBack(BucketId bucket) {
  const uint64_t round = round_.load(std::memory_order_relaxed);
  const uint64_t slot_count = plan_.slots().size();
  const uint64_t first_mark = (round - first_round_) * slot_count;
  const uint64_t end_mark = next_mark_.load(std::memory_order_relaxed);
  // The marks that stay keep their order.
  uint64_t next = first_mark;
  for (uint64_t mark = first_mark; mark < end_mark; ++mark) {
    const int32_t slot = order_[mark % slot_count].load(std::memory_order_relaxed);
    if (plan_.slot(SlotId(slot)).bucket == bucket) {
      words_[slot].store((round - 1) * 2, std::memory_order_relaxed);
      continue;
    }
    order_[next++ % slot_count].store(slot, std::memory_order_relaxed);
  }
  next_mark_.store(next, std::memory_order_relaxed);
  counts_[bucket.value()].marks.fetch_sub(end_mark - next, std::memory_order_relaxed);
}

void ReadyTracker::OpenRound() {
  PELTON_CHECK(UnmarkedSlots().empty()) << "round " << round() << " has not ended";
  round_.fetch_add(1, std::memory_order_release);
  open_.store(true, std::memory_order_release);
}

std::vector<SlotId> ReadyTracker::ReadyOrder() const {
  const size_t count = plan_.slots().size();
  std::vector<SlotId> order;
  order.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    order.emplace_back(order_[i].load(std::memory_order_relaxed));
  }
  return order;
}

absl::Status ReadyTracker::UnknownSlot(SlotId slot) const {
  return absl::InvalidArgumentError(absl::StrCat("round ", round().value(), ": slot ", slot.value(),
                                                 " is unknown; the plan has ",
                                                 plan_.slots().size()));
}

absl::Status ReadyTracker::NotOpen(SlotId slot) const {
  return absl::FailedPreconditionError(
      absl::StrCat(NameOf(slot), " is ready, but round ", round().value(),
                   " has ended and its results have not been waited for"));
}

absl::Status ReadyTracker::MarkedTwice(SlotId slot, uint64_t round) const {
  return absl::AlreadyExistsError(
      absl::StrCat(NameOf(slot), " is ready for the second time in round ", round));
}

std::string ReadyTracker::NameOf(SlotId slot) const {
  return absl::StrCat("tensor '", plan_.tensor(slot).name, "' of bucket ",
                      plan_.slot(slot).bucket.value());
}

}  // namespace pelton
