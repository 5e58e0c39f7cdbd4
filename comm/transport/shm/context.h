// What the parts of one communicator share.
#ifndef PELTON_COMM_TRANSPORT_SHM_CONTEXT_H_
#define PELTON_COMM_TRANSPORT_SHM_CONTEXT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "comm/transport/shm/arena.h"
#include "comm/transport/shm/links.h"

namespace pelton::shm {

// One rank's end. Ranks are those of the communicator. Threads: any. Owns: its hold on the arena;
// the links are the transport's.
struct Context {
  Arena arena;
  Links& links;
  int rank;
  std::vector<int> world_ranks;  // by rank
  bool has_core_per_rank;        // of those that this process may run on

  int world_size() const { return static_cast<int>(world_ranks.size()); }
  pid_t pid(int peer) const { return links.pid(world_ranks[peer]); }
  bool IsAborted() const { return arena.header().abort.state.load() != AbortRecord::kNone; }

  // Wakes `peer`, or all others, if asleep: one load when nobody is. Whoever waits says so before
  // it looks for what it waits for (sequentially consistent), so call this after showing it.
  void Ring(int peer) const;
  void RingAll() const;
};

// A piece of a peer's memory, as this process can reach it.
struct Reach {
  std::byte* data = nullptr;  // mapped; null: private memory of another process
  uint64_t address = 0;       // there
  pid_t pid = 0;
  Mapping::Pointer mapping;  // holds it while it is used

  // Copies to `target`. Errors: those of ReadMemory.
  absl::Status Read(uint64_t offset, std::byte* target, size_t size_bytes) const;
};

// How to reach `size_bytes` at `location` of `peer`. Errors: NotFound: the region has not come in
// yet; OutOfRange: not inside the region.
absl::StatusOr<Reach> ReachOf(const Context& context, int peer, Location location,
                              uint64_t size_bytes);

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_CONTEXT_H_
