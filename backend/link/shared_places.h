// Memory that a trainer and its daemon both reach, at the trainer's end.
#ifndef PELTON_BACKEND_LINK_SHARED_PLACES_H_
#define PELTON_BACKEND_LINK_SHARED_PLACES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/shm/mapping.h"
#include "core/base/fork.h"
#include "core/base/ids.h"
#include "core/memory/region.h"

namespace pelton {

// Memory of a daemon in its trainer, which the trainer's forked children must leave alone.
// A mapping that is private in children.
// Threads: any; the bytes are the users' to order. Owns: the mapping and the descriptor.
class PrivateMapping {
 public:
  // Maps the whole of `file`. Errors: those of shm::Mapping::Of.
  static absl::StatusOr<std::unique_ptr<PrivateMapping>> Of(Descriptor file) {
    absl::StatusOr<shm::Mapping::Pointer> mapping = shm::Mapping::Of(file.get());
    if (!mapping.ok()) return mapping.status();
    return std::unique_ptr<PrivateMapping>(
        new PrivateMapping(std::move(file), *std::move(mapping)));
  }

  std::byte* data() const { return mapping_->data(); }
  size_t size_bytes() const { return mapping_->size_bytes(); }

 private:
  PrivateMapping(Descriptor file, shm::Mapping::Pointer mapping)
      : file_(std::move(file)),
        mapping_(std::move(mapping)),
        in_children_(mapping_->data(), mapping_->size_bytes(), file_.get()) {}

  const Descriptor file_;
  const shm::Mapping::Pointer mapping_;
  const PrivateInChildren in_children_;
};

// The daemon is told of a region when a tensor is first found there, and keeps it as long as it has
// the model. A tensor that lies in no shared memory gets a copy there.
// Threads: Reach by any, for one slot by one at a time; the others not together with it. Owns: the
// copies.
class SharedPlaces {
 public:
  // Gives the daemon a region's number and descriptor; of the same region now and then once more.
  // Threads: any.
  using Tell = std::function<absl::Status(RegionId number, int descriptor)>;

  SharedPlaces(size_t slot_count, Tell tell) : tell_(std::move(tell)), slots_(slot_count) {}

  // Where the daemon reaches the `size_bytes` at `data`, elements of the slot: there, or in the
  // copy. Blocks: never for long. Errors: those of Tell and of Region::Create.
  absl::StatusOr<std::byte*> Reach(SlotId slot, void* data, uint64_t size_bytes);
  // A place with zeros for a slot that nobody has made elements of. Errors: as Reach.
  absl::StatusOr<std::byte*> Zeros(SlotId slot, uint64_t size_bytes);
  // What the caller knows as the slot's place; null: what Reach has returned.
  std::byte* OriginalOf(SlotId slot) const { return slots_[slot.value()].original; }

  // After a round that has ended well: the copies' elements go where the caller wants them.
  void BringBack();
  // After one whose memory others may still write to: nobody sees it in this process any more.
  void TakeBack();

 private:
  struct Slot {
    RegionId known = kPrivateRegion;  // the daemon knows that the slot lies there
    std::unique_ptr<Region> copy;
    std::byte* original = nullptr;  // of the copy
    uint64_t size_bytes = 0;
  };

  // Whether the daemon knows of it, from now on at the latest.
  absl::StatusOr<bool> IsTold(RegionId region);
  absl::StatusOr<std::byte*> CopyOf(Slot& slot, uint64_t size_bytes);

  const Tell tell_;
  std::vector<Slot> slots_;
  // Numbers of regions that the daemon has been told of, by their last digits, so that a mark takes
  // no lock. One that another has taken the place of is told of again.
  std::array<std::atomic<uint32_t>, 256> told_{};
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_SHARED_PLACES_H_
