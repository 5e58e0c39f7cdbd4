// The page of one attached model: words that its trainer and its daemon both see.
#ifndef PELTON_BACKEND_LINK_PAGE_H_
#define PELTON_BACKEND_LINK_PAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/shm/mapping.h"
#include "core/actor/wait_hook.h"
#include "core/base/ids.h"

namespace pelton {

// A word of memory that a trainer and its daemon both see.
// Comes after each access to what both sides see: in a simulation the other one may have its turn
// here, and either may die. Else it costs a load. Blocks: never.
inline void PauseInSimulation() {
  if (!WaitHook::IsAnyInstalled()) return;
  if (WaitHook* const hook = WaitHook::Current()) hook->Pause();
}

// An atomic of the page, with a pause after each access.
// Threads: any. Owns: the value.
template <typename T>
class PageWord {
 public:
  T load(std::memory_order order = std::memory_order_seq_cst) const {
    const T value = word_.load(order);
    PauseInSimulation();
    return value;
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    word_.store(value, order);
    PauseInSimulation();
  }

 private:
  std::atomic<T> word_;
};

// Grows with every change of the page or of proto/link_rounds.proto.
inline constexpr uint32_t kLinkVersion = 3;

// How the last round ended, as the daemon tells it: read after PageHeader::ended only.
struct PageOutcome {
  static constexpr size_t kTextBytes = 2036;
  int32_t code;  // an absl::StatusCode
  uint32_t is_interrupt;
  uint32_t text_bytes;
  char text[kTextBytes];
};

// Each side's words lie on cache lines of their own. docs/daemon.md draws it.
struct PageHeader {
  static constexpr uint64_t kMagic = 0x70656c746f6e3031;  // "pelton01"

  alignas(64) uint64_t magic;
  uint32_t version;
  uint32_t slot_count;
  uint64_t attachment;  // the daemon's number of this attachment
  // Futex words, each of one side's Waker: where that side sleeps.
  alignas(64) std::atomic<uint32_t> daemon_sleeps;
  alignas(64) std::atomic<uint32_t> trainer_sleeps;

  // The trainer's. `waited` is the round that it waits for, stored after `timeout_ns`, which is
  // counted from the moment that the daemon sees it.
  alignas(64) PageWord<uint64_t> waited;
  PageWord<int64_t> timeout_ns;
  PageWord<uint32_t> mode;      // a RoundMode, of the open round and later ones
  PageWord<uint32_t> measures;  // whether the buckets' times are wanted

  // The daemon's. `ended` is the last round that has ended there, stored after everything that the
  // trainer reads of that round: outcome, times, the slots' words and what runs next.
  alignas(64) PageWord<uint64_t> ended;
  PageWord<uint64_t> sent_bytes;
  // Not 0: a peer that stands still may yet write to standalone tensors of the last round.
  PageWord<uint32_t> takes_back;
  alignas(64) PageOutcome outcome;
};

struct PageBucket {
  // The trainer's: the last round in which all slots are ready, stored after their marks.
  alignas(64) PageWord<uint64_t> ready;
  // The daemon's, of the open round: whether the pipeline runs in it; of the last one: when the
  // bucket was ready and complete.
  PageWord<uint32_t> runs;
  PageWord<int64_t> ready_ns;
  PageWord<int64_t> done_ns;
};

struct PageSlot {
  // The trainer's: twice the round of the last mark, plus 1 where the tensor was used.
  PageWord<uint64_t> mark;
  // The daemon's, of the last round: whether any rank used it, told where this one did not.
  PageWord<uint32_t> is_used_by_any;
  // The trainer's, of a standalone slot: the region, by the trainer's number, and the place there
  // in bytes; stored with the mark.
  PageWord<uint32_t> region;
  PageWord<uint64_t> offset;
  uint64_t reserved;
};

// A view of the mapped page. A page of `slot_count` slots has room for as many buckets, so that it
// serves every plan of the same tensors.
// Threads: any; see the words. Owns: the mapping.
class LinkPage {
 public:
  // A descriptor of a new one, sealed against a change of size. Errors: those of NewSharedMemory.
  static absl::StatusOr<Descriptor> Create(size_t slot_count, uint64_t attachment);
  // Errors: InvalidArgument: it is no page of this version for `slot_count` slots; says what it is.
  static absl::StatusOr<LinkPage> Map(int descriptor, size_t slot_count);

  PageHeader& header() const { return *reinterpret_cast<PageHeader*>(mapping_->data()); }
  PageBucket& bucket(BucketId bucket) const {
    return buckets()[static_cast<size_t>(bucket.value())];
  }
  PageSlot& slot(SlotId slot) const {
    return reinterpret_cast<PageSlot*>(buckets() + slot_count_)[static_cast<size_t>(slot.value())];
  }

  // Writes `status`, its text cut to the room that there is, and reads it back; what the other side
  // has left of it may be anything.
  void SetOutcome(const absl::Status& status) const;
  absl::Status outcome() const;

 private:
  LinkPage(shm::Mapping::Pointer mapping, size_t slot_count)
      : mapping_(std::move(mapping)), slot_count_(slot_count) {}
  PageBucket* buckets() const {
    return reinterpret_cast<PageBucket*>(mapping_->data() + sizeof(PageHeader));
  }

  shm::Mapping::Pointer mapping_;
  size_t slot_count_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_PAGE_H_
