// A trainer's shared memory in its daemon's process.
#ifndef PELTON_BACKEND_LINK_TRAINER_REGIONS_H_
#define PELTON_BACKEND_LINK_TRAINER_REGIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/transport/descriptor.h"
#include "core/base/ids.h"
#include "core/base/sharing.h"
#include "core/memory/region.h"

namespace pelton {

// The regions that a trainer has registered on one of its connections, by the trainer's numbers.
// Each is also a region of this process, which the peers' daemons are told of, so that they reach
// into it as into one that was made here. However many connections register a region, this process
// maps it once.
// Threads: any. Owns: its share of the regions.
class TrainerRegions {
 public:
  static constexpr size_t kMostRegions = 4096;

  // How the peers are told of a region, and that it is no longer used. Threads: any.
  struct Peers {
    std::function<absl::Status(const Region&)> tell;
    std::function<void(RegionId)> forget;
  };
  // shared: an operation keeps what it works on, and the peers forget it after the last one.
  using Pointer = std::shared_ptr<const Region>;

  // The regions must go before what `peers` call.
  explicit TrainerRegions(Peers peers) : peers_(std::move(peers)) {}

  // Enters the trainer's region `number`, whose descriptor has come along; by one thread at a time.
  // Errors: InvalidArgument: it came with another number of descriptors, with one of other memory,
  // or under a number that is taken; ResourceExhausted: kMostRegions; those of Peers::tell, but for
  // Unimplemented: then operations go another way.
  absl::Status Enter(RegionId number, const std::vector<Descriptor>& descriptors);
  void Erase(RegionId number);

  // Null: the trainer has registered no such region.
  Pointer Find(RegionId number) const;
  // `size_bytes` at `offset` of the trainer's region, for `what`. Errors: InvalidArgument: it has
  // registered no such region, or they lie outside of it; Unavailable: the region was taken back
  // from a peer, so that this process no longer sees what the trainer writes.
  struct Place {
    Pointer region;
    Location location;
  };
  absl::StatusOr<Place> PlaceOf(Location trainers, uint64_t size_bytes,
                                absl::string_view what) const;
  // Whether one of them was taken back.
  bool IsAnyUnshared() const;

 private:
  const Peers peers_;
  SharedTable<uint32_t, Pointer> regions_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_TRAINER_REGIONS_H_
