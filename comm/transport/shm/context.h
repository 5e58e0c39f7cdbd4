// What the parts of one communicator share.
#ifndef PELTON_COMM_TRANSPORT_SHM_CONTEXT_H_
#define PELTON_COMM_TRANSPORT_SHM_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/transport/shm/arena.h"
#include "comm/transport/shm/links.h"
#include "core/pipeline/operation_kind.h"

namespace pelton::shm {

// One rank's end. Ranks are those of the communicator. Threads: any. Owns: its hold on the arena;
// the links are the transport's.
struct Context {
  Arena arena;
  Links& links;
  int rank;
  std::vector<int> world_ranks;  // by rank
  bool has_core_per_rank;        // of those that this process may run on
  KindSet native_kinds;          // the collectives that run by plan.h; the others are programs

  int world_size() const { return static_cast<int>(world_ranks.size()); }
  pid_t pid(int peer) const { return links.pid(world_ranks[peer]); }
  // Where peers find what lies at `address`, which is `location`, in this process: a region that
  // was never registered is private memory like any other.
  Location Reachable(Location location, std::byte* address) const;
  bool IsAborted() const { return arena.header().abort.state.load() != AbortRecord::kNone; }

  // Wakes `peer`, or all others, if asleep: one load when nobody is. Whoever waits says so before
  // it looks for what it waits for (sequentially consistent), so call this after showing it.
  void Ring(int peer) const;
  void RingAll() const;
};

// Reading peers' memory: a peer that takes its memory back first waits for the end of what has
// begun, and nothing begins any more (OWN-1). Threads: one. Owns: nothing.
class Reading {
 public:
  // Sequentially consistent: whichever comes first, this or a peer's `has_closed`, the other rank
  // sees it.
  explicit Reading(const Context& context) : context_(context) {
    busy().store(RankBlock::kReading);
  }
  ~Reading() { busy().store(RankBlock::kIdle, std::memory_order_release); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  // Whether the memory of `peer` holds what it was launched with. To be asked before reading, and
  // again afterwards: a rank that was stopped meanwhile is not waited for.
  bool MayRead(int peer) const { return context_.arena.rank(peer).has_closed.load() == 0; }

 private:
  std::atomic<uint32_t>& busy() const { return context_.arena.rank(context_.rank).busy; }

  const Context& context_;
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
