// One communication operation as a plain record, so that it passes unchanged through a daemon's
// ring, a shared memory post, the watchdog, the trace and the simulator.
#ifndef PELTON_CORE_PIPELINE_OPERATION_H_
#define PELTON_CORE_PIPELINE_OPERATION_H_

#include <cstdint>
#include <string>
#include <type_traits>

#include "core/base/ids.h"
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

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_OPERATION_H_
