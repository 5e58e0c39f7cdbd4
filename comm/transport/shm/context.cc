#include "comm/transport/shm/context.h"

#include <unistd.h>

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/shm/remote_memory.h"
#include "core/base/futex.h"

namespace pelton::shm {

Location Context::Reachable(Location location, std::byte* address) const {
  if (location.region == kPrivateRegion || links.IsRegistered(location.region)) return location;
  return {kPrivateRegion, reinterpret_cast<uintptr_t>(address)};
}

void Context::Ring(int peer) const {
  if (arena.header().parked.load() == 0) return;
  RankBlock& block = arena.rank(peer);
  if (block.parked.load() == 0) return;
  block.doorbell.fetch_add(1);
  FutexWake(&block.doorbell, kAllSleepers, FutexScope::kShared);
}

void Context::RingAll() const {
  if (arena.header().parked.load() == 0) return;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank) Ring(peer);
  }
}

absl::Status Reach::Read(uint64_t offset, std::byte* target, size_t size_bytes) const {
  if (size_bytes == 0) return absl::OkStatus();
  if (data == nullptr) return ReadMemory(pid, address + offset, target, size_bytes);
  if (data + offset != target) std::memcpy(target, data + offset, size_bytes);
  return absl::OkStatus();
}

absl::StatusOr<Reach> ReachOf(const Context& context, int peer, Location location,
                              uint64_t size_bytes) {
  Reach reach;
  reach.pid = context.pid(peer);
  if (location.region == kPrivateRegion) {
    reach.address = location.offset;
    if (reach.pid == getpid()) {
      reach.data = reinterpret_cast<std::byte*>(static_cast<uintptr_t>(location.offset));
    }
    return reach;
  }
  reach.mapping = context.links.FindRegion(context.world_ranks[peer], location.region);
  if (reach.mapping == nullptr) return absl::NotFoundError("not registered yet");
  const uint64_t room = reach.mapping->size_bytes();
  if (location.offset > room || size_bytes > room - location.offset) {
    return absl::OutOfRangeError(absl::StrCat("rank ", peer, ": offset ", location.offset, " with ",
                                              size_bytes, " bytes is outside its region ",
                                              location.region.value()));
  }
  reach.data = reach.mapping->data() + location.offset;
  return reach;
}

}  // namespace pelton::shm
