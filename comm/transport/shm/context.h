// What the parts of one communicator share, and how it ends on all of its ranks.
#ifndef PELTON_COMM_TRANSPORT_SHM_CONTEXT_H_
#define PELTON_COMM_TRANSPORT_SHM_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/shm/abort_words.h"
#include "comm/transport/shm/board.h"
#include "comm/transport/shm/channel.h"
#include "comm/transport/shm/doorbell.h"
#include "comm/transport/shm/edge_queue.h"
#include "comm/transport/shm/links.h"
#include "comm/transport/shm/mapping.h"
#include "core/base/ids.h"
#include "core/base/limits.h"
#include "core/base/sharing.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/operation_kind.h"

namespace pelton::shm {

// The control block of a communicator: one memfd that all of its ranks map.
// Tensors up to this size travel in the eager buffers, with the post itself.
inline constexpr size_t kEagerBytes = size_t{16} << 10;
inline constexpr uint64_t kChannelDepth = limits::kMaxOperationsInFlight;

using Board = BasicBoard<internal::RealSync, SharedCell<Operation>>;
using Channel = BasicChannel<internal::RealSync, SharedCell, Operation, kChannelDepth>;
// As many eager buffers as a rank has posts.
inline constexpr uint64_t kDepth = Board::kDepth;

// The first reason to abort; the others are dropped.
struct AbortRecord {
  AbortState state;
  int32_t code;       // an absl::StatusCode
  uint32_t is_death;  // nobody aborted: a rank died, and each survivor sees it for itself
  int32_t rank;       // of the one that aborts, as texts speak of it
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

// Whether a rank has opened the communicator, in its word.
enum Joined : uint32_t { kNotYet, kHasJoined, kHasGivenUp };

// What one rank shows the others.
struct RankBlock {
  Board board;
  alignas(kCacheLineBytes) Doorbell doorbell;
  std::atomic<uint32_t> joined;  // a Joined
  MemoryGate gate;
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
  std::byte* eager_buffer(int rank, uint64_t sequence) const {
    return data() + eager_offset_ + (rank * kDepth + sequence % kDepth) * kEagerBytes;
  }
  Channel& channel(int from, int to) const {
    return *reinterpret_cast<Channel*>(data() + channels_offset_ +
                                       (size_t{sizeof(Channel)} * from * world_size_) +
                                       sizeof(Channel) * to);
  }
  EdgeQueue& edge_queue(int from, int to) const {
    return *reinterpret_cast<EdgeQueue*>(data() + edge_queues_offset_ +
                                         (size_t{sizeof(EdgeQueue)} * from * world_size_) +
                                         sizeof(EdgeQueue) * to);
  }

 private:
  explicit Arena(int world_size);
  std::byte* data() const { return mapping_->data(); }

  Mapping::Pointer mapping_;
  int world_size_;
  size_t ranks_offset_;
  size_t eager_offset_;
  size_t channels_offset_;
  size_t edge_queues_offset_;
  size_t size_bytes_;
};

// One rank's end. Ranks are those of the communicator. Threads: any. Owns: its hold on the arena;
// the links are the transport's.
struct Context {
  Arena arena;
  Links& links;
  int rank;
  std::vector<int> world_ranks;  // by rank
  bool has_core_per_rank;        // of those that this process may use
  KindSet native_kinds;          // the collectives that run by task_list.h; the others are programs
  // With this communicator. What others have registered may go before an operation of this one
  // ends.
  const SharedList<RegionId>* registered = nullptr;

  int world_size() const { return static_cast<int>(world_ranks.size()); }
  pid_t pid(int peer) const { return links.pid(world_ranks[peer]); }
  // The number by which texts speak of `peer`.
  int name(int peer) const { return links.name(world_ranks[peer]); }
  // Where peers find what lies at `address`, which is `location`, in this process: a region that
  // is not registered with this communicator is private memory like any other.
  Location Reachable(Location location, std::byte* address) const;
  bool IsAborted() const { return arena.header().abort.state.is_thrown(); }

  // Wakes `peer`, or all others, if asleep: one load when nobody is. Call this after showing what
  // they wait for, in a sequentially consistent way (doorbell.h).
  void Ring(int peer) const;
  void RingAll() const;
};

// Reading peers' memory: a peer that takes its memory back first waits for the end of what has
// begun, and nothing begins any more (OWN-1, abort_words.h). Threads: one. Owns: nothing.
class Reading {
 public:
  explicit Reading(const Context& context) : context_(context) {
    gate().Enter(MemoryGate::kReading);
  }
  ~Reading() { gate().Leave(); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  // Whether the memory of `peer` holds what it was launched with.
  bool MayRead(int peer) const { return !context_.arena.rank(peer).gate.is_closed(); }

  // Reads with `read`, a function that returns a status. `may_read` is asked by MayRead of all
  // whose memory that is, before and again afterwards: a rank that was stopped meanwhile is not
  // waited for. False: nothing counts as read, and the operation waits for its end. Either an abort
  // is on its way, or the process whose memory it was has ended. The kernel takes its memory away
  // first and closes its sockets afterwards, so that Links tells of that end a little later, with
  // the rank's name. Errors: the others of `read`.
  template <typename MayReadAll, typename Read>
  absl::StatusOr<bool> Try(MayReadAll may_read, Read read) const {
    if (!may_read(*this)) return false;
    const absl::Status status = read();
    if (!may_read(*this) || absl::IsUnavailable(status)) return false;
    if (!status.ok()) return status;
    return true;
  }
  // The same of one peer's memory.
  template <typename Read>
  absl::StatusOr<bool> TryFrom(int peer, Read read) const {
    return Try([peer](const Reading& reading) { return reading.MayRead(peer); }, std::move(read));
  }

 private:
  MemoryGate& gate() const { return context_.arena.rank(context_.rank).gate; }

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

// The first reason wins, on all ranks: it stands in the control block, and every step looks there.
// Threads: any. Owns: this rank's own reason.
class AbortSwitch {
 public:
  explicit AbortSwitch(const Context& context) : context_(context) {}

  // Shows `reason` to all ranks, unless there is one; wakes them. `is_death`: it says which rank
  // is gone, and reads the same on every rank. Blocks: never.
  void Throw(const absl::Status& reason, bool is_death);

  bool is_thrown() const { return context_.IsAborted(); }
  // As this rank reports it: its own reason as it is, a peer's as "rank N aborted: ...". Nothing
  // while the rank that aborts is still writing.
  std::optional<absl::Status> Reason() const;
  // Operations that have all they need may still end well: a rank that has left took part in them.
  bool IsDeath() const;

  // Shows that this rank takes its memory back, so that no peer begins to read or write there, and
  // looks whether peers that are there are still at it: only when they are quiet the owner may have
  // it (OWN-1). A peer that writes for longer than a second was stopped, by SIGSTOP, a debugger, or
  // whatever keeps it from its core, and may go on at any time. One that reads for so long is not
  // waited for, because it drops what it has read when it goes on.
  // Threads: the one that runs the operations.
  enum class Peers { kQuiet, kBusy, kStopped };
  Peers CloseMemory();

 private:
  const Context& context_;
  EndReason own_reason_;
  std::atomic<bool> is_own_death_{false};
  std::optional<absl::Time> since_;  // of taking memory back
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_CONTEXT_H_
