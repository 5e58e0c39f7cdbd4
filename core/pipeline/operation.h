// One communication operation as a plain record, so that it passes unchanged through a daemon's
// ring, a shared memory post, the watchdog, the trace and the simulator; what runs operations, as
// the pipelines know it (comm/ implements it); and how the launched ones have ended.
#ifndef PELTON_CORE_PIPELINE_OPERATION_H_
#define PELTON_CORE_PIPELINE_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/base/limits.h"
#include "core/memory/device_queue.h"
#include "core/memory/dtype.h"
#include "core/memory/region.h"
#include "core/pipeline/operation_kind.h"

namespace pelton {

inline constexpr int32_t kNoPeer = -1;
inline constexpr BucketId kNoBucket{-1};

// What `count`, `peer` and the two locations mean is in the row of the kind (operation_kind.h). In
// place means that source and target share memory.
struct Operation {
  OperationKind kind = OperationKind::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  uint8_t flags = 0;  // of a send or receive inside a collective: 1 + its kind; else 0
  int32_t peer =
      kNoPeer;  // root, destination or source; the id of a weight table for neighbour operations
  RegionId source_region = kPrivateRegion;
  RegionId target_region = kPrivateRegion;
  uint64_t source_offset = 0;  // bytes into the region
  uint64_t target_offset = 0;  // bytes into the region
  uint64_t count = 0;          // elements, see above
  uint64_t sequence =
      0;  // set by Launch: number among the communicator's collectives, or towards that peer
  CommunicatorId communicator;  // set by Launch
  Generation generation;        // of the membership; an older one is dropped (GEN-1)
  BucketId bucket = kNoBucket;  // whose turn this is, for reports
  int32_t tag = 0;              // of kSend and kRecv

  Location source() const { return {source_region, source_offset}; }
  Location target() const { return {target_region, target_offset}; }
  void set_source(Location location) {
    source_region = location.region;
    source_offset = location.offset;
  }
  void set_target(Location location) {
    target_region = location.region;
    target_offset = location.offset;
  }
};
static_assert(sizeof(Operation) == 64, "an operation is one cache line on the wire");
static_assert(std::is_trivially_copyable_v<Operation>);

// In place, of `count` elements at `location`.
Operation AllReduceOf(ReduceOp op, DType dtype, uint64_t count, Location location,
                      CommunicatorId communicator = {});
// A send from `location`, or a receive there.
Operation SendOrReceiveOf(OperationKind kind, Rank peer, uint64_t size_bytes, Location location,
                          CommunicatorId communicator);

// For error texts: "allreduce #12 of bucket 3 (float32 x 1024, SUM)".
std::string Describe(const Operation& operation);

// Bytes that `operation` reads at its source and writes at its target on `rank` of `world_size`
// ranks.
struct Extent {
  uint64_t source_bytes = 0;
  uint64_t target_bytes = 0;
};
Extent ExtentOf(const Operation& operation, Rank rank, WorldSize world_size);

// Bytes that `rank` sends in an optimal schedule of `operation`: what the wire of a rank cannot do
// without. An allreduce sends 2 (n-1)/n times its tensor. Units: bytes, rounded down.
uint64_t SentBytesOf(const Operation& operation, Rank rank, WorldSize world_size);

// What differs between the posts of two ranks for the same collective: "" if they agree, else for
// instance "count is 4 on rank 0 and 5 on rank 1". Locations may differ.
std::string DifferenceOf(const Operation& mine, Rank rank, const Operation& theirs, Rank peer);

// Names one launched operation of one runner; a value that costs nothing to copy or to drop.
struct Completion {
  uint64_t ticket = 0;  // number among the runner's launches, from 1
};

// Runs operations. Collectives run one after the other in launch order, which is the same on all
// ranks (ORDER-1); point-to-point operations are ordered per peer and direction only and never wait
// for collectives. Threads: Wake and Abort by any, all else by one thread at a time, which drives.
// So a runner's state needs no lock: it notes an abort, and the driving thread finds the note.
// Owns: the state of the operations in flight, never their memory.
class OperationRunner {
 public:
  virtual ~OperationRunner() = default;

  // Queues `operation` behind the earlier ones and starts it if it is their turn. Its memory
  // belongs to the runner until Query says it is done (OWN-1). Blocks: never. Errors:
  // InvalidArgument: a field is out of range, named with its value; ResourceExhausted:
  // limits::kMaxOperationsInFlight reached, so that it is to be tried again; the reason of an
  // earlier Abort.
  virtual absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) = 0;

  // Advances what is in flight by a bounded amount of work; true if anything moved. Blocks: never.
  virtual bool Progress() = 0;

  // OK: done; Unavailable is never returned for "not yet", see `done`. A failed operation is done,
  // with the reason: InvalidArgument when the ranks' operations differ (the runner stays usable),
  // else that of the Abort.
  struct State {
    bool done = false;
    absl::Status status;
  };
  // Every launch can be asked for, at any time; see CompletionTable for very old failures.
  // Blocks: never.
  virtual State Query(Completion completion) = 0;

  // Done once `stream` comes after the operation: what is put there later finds its result. On a
  // device that is soon after Launch; elsewhere, and on the host's stream, when the operation is
  // done. Blocks: never. Errors: as Query, as far as they are known.
  virtual State Follow(Completion completion, Stream& stream) { return Query(completion); }

  // Sleeps until a peer may have moved something, Wake is called, or `until`. Blocks: until then.
  virtual void Park(absl::Time until) = 0;
  // Ends a Park, also one that is about to begin.
  virtual void Wake() = 0;

  // Every operation in flight and every later one fails with `reason` on this rank, and the peers
  // are told. The first reason stays; one that is ResourceExhausted, which would be taken for want
  // of room, becomes Aborted. Blocks: never.
  virtual void Abort(const absl::Status& reason) = 0;
  // Ranks that have not launched the oldest operation that this rank has in flight, or whose part
  // in it this rank waits for.
  virtual std::vector<Rank> Missing() const = 0;
};

// Gives tickets out and answers for all of them, for ever: for one in flight because it is looked
// up, for one that failed because failures are kept, and for any other because it has ended well.
// So one operation that takes long stops nothing, however many are launched after it; only how many
// are in flight at a time is bounded.
//
// Each operation in flight has a place, a number below kPlaces that no other one has until it ends,
// for the runner's own records. Places are taken from a free list, the last one freed first.
// Threads: one at a time. Owns: tickets and statuses.
class CompletionTable {
 public:
  static constexpr size_t kPlaces = limits::kMaxOperationsInFlight;
  static constexpr size_t kNoPlace = kPlaces;
  // Failures that are kept; an older ticket's outcome is then unknown, and said to be.
  static constexpr size_t kMaxFailures = 4 * kPlaces;

  struct Entry {
    Completion completion;
    size_t place = kNoPlace;
  };

  CompletionTable();

  bool has_room() const { return in_flight_ < kPlaces; }
  size_t in_flight() const { return in_flight_; }
  uint64_t launched() const { return launched_; }  // the newest ticket

  // The next ticket, now in flight. Requires: has_room().
  Entry Begin();
  // Where it is; kNoPlace if it is not in flight.
  size_t PlaceOf(uint64_t ticket) const;
  // Ends an operation in flight; its place is free.
  void End(uint64_t ticket, const absl::Status& status);
  // Ends all that is in flight.
  void EndAll(const absl::Status& status);
  // The oldest one in flight; 0: there is none. Looks at all.
  uint64_t oldest() const;

  OperationRunner::State Query(Completion completion) const;

 private:
  struct Slot {
    uint64_t ticket = 0;  // 0: empty
    size_t place = 0;
  };

  size_t Home(uint64_t ticket) const { return ticket & (slots_.size() - 1); }
  size_t SlotOf(uint64_t ticket) const;  // slots_.size(): none
  void Insert(Slot slot);
  void Erase(size_t index);
  void Remember(uint64_t ticket, const absl::Status& failure);

  // A hash table with linear probing, at most half full: tickets are numbered through, so that the
  // first look almost always finds.
  std::vector<Slot> slots_;
  std::vector<size_t> free_;  // places that were in use before
  size_t in_flight_ = 0;
  uint64_t launched_ = 0;
  std::map<uint64_t, absl::Status> failures_;
  uint64_t forgotten_ = 0;  // the newest failure that is not kept any more
};

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_OPERATION_H_
