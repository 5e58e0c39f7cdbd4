// Copies of a trainer's private memory that its daemon can reach.
#ifndef PELTON_BACKEND_LINK_STAGING_H_
#define PELTON_BACKEND_LINK_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/link/piece_ring.h"
#include "core/base/ids.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"

namespace pelton {

// Regions that are used again and again, the smallest that will do first.
// Threads: one at a time. Owns: the regions that are not in use.
class StagingPool {
 public:
  using Announce = std::function<absl::Status(const Region&)>;
  using Withdraw = std::function<void(RegionId)>;

  // A new region is told of by `announce`, one that is given up by `withdraw`.
  StagingPool(Announce announce, Withdraw withdraw)
      : announce_(std::move(announce)), withdraw_(std::move(withdraw)) {}

  // Errors: ResourceExhausted: no memory; those of `announce`.
  absl::StatusOr<std::unique_ptr<Region>> Take(size_t size_bytes);
  void GiveBack(std::unique_ptr<Region> region);

 private:
  static constexpr size_t kMostKept = 4;

  const Announce announce_;
  const Withdraw withdraw_;
  std::vector<std::unique_ptr<Region>> kept_;  // the one given back last is the last
};

// An operation in flight at the daemon, and where the copies of its memory are.
// Threads: one at a time. Owns: its regions.
struct StagedOperation {
  std::vector<std::unique_ptr<Region>> regions;
  // What the result is copied to, once it is there; null: it is in place already.
  std::byte* target = nullptr;
  const std::byte* result = nullptr;
  size_t target_bytes = 0;
  // Whether the daemon and its peers use memory of the caller's where it lies.
  bool is_direct = false;
  RegionId direct_target = kPrivateRegion;  // the caller's region that they write to; 0: none
  // Of one that is staged piece by piece, in the only region; null: as a whole.
  std::unique_ptr<PieceFeeder> pieces;
};

// Where `operation`, which has been checked, reads and writes.
// Threads: a value. Owns: nothing.
struct OperationPlaces {
  std::byte* source = nullptr;
  std::byte* target = nullptr;
  Extent extent;
  bool source_is_direct = false;  // the daemon reaches it where it lies
  bool target_is_direct = false;
  bool reads_target = false;  // what the target holds before counts: the root of a broadcast
};

// Copies what the operation reads into regions of `pool`, and has `record` name these. A source and
// a target that overlap, as in place, overlap in the copy too. Errors: those of StagingPool::Take;
// then nothing is kept.
absl::Status CopyIntoStaging(const OperationPlaces& places, StagingPool& pool, Operation* record,
                             StagedOperation* staged);

// Whether an operation on these places may be staged piece by piece, as far as they decide it: they
// are the same, or apart, and something has to be copied.
bool MayGoInPieces(const OperationPlaces& places);
// Stages an allreduce so, and has `record` name the ring. Errors: those of StagingPool::Take.
absl::Status StageInPieces(const OperationPlaces& places, uint64_t piece_bytes, StagingPool& pool,
                           Operation* record, StagedOperation* staged);

// Brings the result to its place where `status` is OK, and the regions back. Answers `status`, or
// Aborted where the target's region has been taken back from peers meanwhile.
absl::Status CopyOutOfStaging(StagedOperation& staged, StagingPool& pool,
                              const absl::Status& status);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_STAGING_H_
