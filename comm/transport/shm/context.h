// What the parts of one communicator share.
#ifndef PELTON_COMM_TRANSPORT_SHM_CONTEXT_H_
#define PELTON_COMM_TRANSPORT_SHM_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/transport/shm/edge_lane.h"
#include "comm/transport/shm/links.h"
#include "comm/transport/shm/mapping.h"
#include "core/base/ids.h"
#include "core/base/limits.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/operation_kind.h"

namespace pelton::shm {

// The control block of a communicator: one memfd that all of its ranks map.
inline constexpr size_t kCacheLineBytes = 64;
// Tensors up to this size travel in the slots, with the post itself.
inline constexpr size_t kEagerBytes = size_t{16} << 10;
// A rank posts collective s after it has completed s - 1, which takes all arrivals at s - 1, and a
// rank arrives there when it is through with s - 2: so two posts and two slots per rank suffice.
inline constexpr uint64_t kDepth = 2;
inline constexpr uint64_t kChannelDepth = limits::kMaxOperationsInFlight;

// A number that is counted up within one collective: the low half counts, the high half is the
// collective's sequence number, so that a late reader knows that the count is another's.
inline constexpr uint64_t TaggedCount(uint64_t sequence, uint64_t count) {
  return sequence << 32 | count;
}
inline constexpr uint32_t TagOf(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
inline constexpr uint64_t CountOf(uint64_t word) { return word & 0xFFFFFFFF; }

// The first reason to abort; the others are dropped.
struct AbortRecord {
  enum State : uint32_t { kNone, kWriting, kReady };
  std::atomic<uint32_t> state;
  int32_t code;       // an absl::StatusCode
  uint32_t is_death;  // nobody aborted: a rank died, and each survivor sees it for itself
  int32_t rank;       // in the world, of the one that aborts
  char text[496];     // ends with 0
};

struct ArenaHeader {
  alignas(kCacheLineBytes) uint64_t magic;
  uint64_t size_bytes;
  uint32_t layout_version;
  uint32_t world_size;
  uint32_t communicator;
  uint32_t generation;
  std::atomic<uint32_t> joined;                           // ranks that have mapped it
  alignas(kCacheLineBytes) std::atomic<uint32_t> parked;  // ranks asleep: nobody to wake if 0
  alignas(kCacheLineBytes) AbortRecord abort;
};

// What one rank shows the others. Every group of words has a cache line of its own.
struct RankBlock {
  enum Busy : uint32_t { kIdle, kReading, kWriting };
  alignas(kCacheLineBytes) std::atomic<uint64_t> arrived;   // sequence of its latest post
  alignas(kCacheLineBytes) std::atomic<uint64_t> claimed;   // tasks given out, tagged
  alignas(kCacheLineBytes) std::atomic<uint64_t> finished;  // tasks done, tagged
  alignas(kCacheLineBytes) std::atomic<uint32_t> doorbell;  // futex word, counts rings
  std::atomic<uint32_t> parked;                             // 1: asleep, or about to be
  std::atomic<uint32_t> joined;
  alignas(kCacheLineBytes) std::atomic<uint32_t> busy;        // whether it is in others' memory
  alignas(kCacheLineBytes) std::atomic<uint32_t> has_closed;  // 1: its memory is its own again
  alignas(kCacheLineBytes) Operation posts[kDepth];
};

// One direction of one pair of ranks, for send and recv. The sender writes each post into any slot
// whose last one was answered, and the slot's number into `order`; the receiver reads the numbers
// in that order, takes the posts by tag and answers each in its slot. So a post that nobody takes
// for long occupies one slot, and the others go round. A number is read before its slot is
// answered, so there are never more unread ones than slots.
struct Channel {
  enum Answer : uint32_t { kPending, kReceived, kDifferent };
  struct Slot {
    alignas(kCacheLineBytes) Operation post;
    alignas(kCacheLineBytes) Operation reply;  // the receive that answered
    std::atomic<uint32_t> answer;
  };
  alignas(kCacheLineBytes) std::atomic<uint64_t> posted;  // sends ever posted
  uint16_t order[kChannelDepth];                          // their slots, as a ring
  Slot slots[kChannelDepth];
};

// A view of the mapped control block. Threads: any; see the words. Owns: the mapping.
class Arena {
 public:
  // A descriptor of a new one, for `world_size` ranks.
  static absl::StatusOr<Descriptor> Create(CommunicatorId id, Generation generation,
                                           WorldSize world_size);
  // Errors: InvalidArgument: not a control block for these; says what differs.
  static absl::StatusOr<Arena> Map(int descriptor, CommunicatorId id, Generation generation,
                                   WorldSize world_size);

  ArenaHeader& header() const { return *reinterpret_cast<ArenaHeader*>(data()); }
  RankBlock& rank(int rank) const {
    return *reinterpret_cast<RankBlock*>(data() + ranks_offset_ + rank * sizeof(RankBlock));
  }
  std::byte* eager_slot(int rank, uint64_t sequence) const {
    return data() + slots_offset_ + (rank * kDepth + sequence % kDepth) * kEagerBytes;
  }
  Channel& channel(int from, int to) const {
    return *reinterpret_cast<Channel*>(data() + channels_offset_ +
                                       (size_t{sizeof(Channel)} * from * world_size_) +
                                       sizeof(Channel) * to);
  }
  EdgeLane& edge_lane(int from, int to) const {
    return *reinterpret_cast<EdgeLane*>(data() + edge_lanes_offset_ +
                                        (size_t{sizeof(EdgeLane)} * from * world_size_) +
                                        sizeof(EdgeLane) * to);
  }

 private:
  explicit Arena(int world_size);
  std::byte* data() const { return mapping_->data(); }

  Mapping::Pointer mapping_;
  int world_size_;
  size_t ranks_offset_;
  size_t slots_offset_;
  size_t channels_offset_;
  size_t edge_lanes_offset_;
  size_t size_bytes_;
};

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
