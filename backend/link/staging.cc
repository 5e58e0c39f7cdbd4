#include "backend/link/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// A place in a copy has its original's place in a cache line, so that kernels see the same
// alignment, and sum in the same order, as without the copy.
size_t LeadOf(const std::byte* data) {
  return reinterpret_cast<uintptr_t>(data) % limits::kSlotAlignmentBytes;
}

// A copy of `size_bytes` at `original`, not filled yet.
absl::StatusOr<std::byte*> TakeCopy(const std::byte* original, size_t size_bytes, StagingPool& pool,
                                    StagedOperation* staged) {
  const size_t lead = LeadOf(original);
  ASSIGN_OR_RETURN(std::unique_ptr<Region> region, pool.Take(lead + size_bytes));
  std::byte* const copy = region->data() + lead;
  staged->regions.push_back(std::move(region));
  return copy;
}

bool Overlap(const OperationPlaces& places) {
  const std::byte* const source_end = places.source + places.extent.source_bytes;
  const std::byte* const target_end = places.target + places.extent.target_bytes;
  return places.extent.source_bytes > 0 && places.extent.target_bytes > 0 &&
         places.source < target_end && places.target < source_end;
}

void CopyIn(std::byte* copy, const std::byte* original, size_t size_bytes) {
  if (size_bytes > 0) std::memcpy(copy, original, size_bytes);
}

// Both in one copy that spans them.
absl::Status StageTogether(const OperationPlaces& places, StagingPool& pool, Operation* record,
                           StagedOperation* staged) {
  std::byte* const begin = std::min(places.source, places.target);
  std::byte* const end = std::max(places.source + places.extent.source_bytes,
                                  places.target + places.extent.target_bytes);
  ASSIGN_OR_RETURN(std::byte* const copy,
                   TakeCopy(begin, static_cast<size_t>(end - begin), pool, staged));
  CopyIn(copy + (places.source - begin), places.source, places.extent.source_bytes);
  std::byte* const target = copy + (places.target - begin);
  record->set_source(Locate(copy + (places.source - begin), places.extent.source_bytes));
  record->set_target(Locate(target, places.extent.target_bytes));
  staged->result = target;
  staged->target = places.target;
  return absl::OkStatus();
}

absl::Status StageSource(const OperationPlaces& places, StagingPool& pool, Operation* record,
                         StagedOperation* staged) {
  ASSIGN_OR_RETURN(std::byte* const copy,
                   TakeCopy(places.source, places.extent.source_bytes, pool, staged));
  CopyIn(copy, places.source, places.extent.source_bytes);
  record->set_source(Locate(copy, places.extent.source_bytes));
  return absl::OkStatus();
}

absl::Status StageTarget(const OperationPlaces& places, StagingPool& pool, Operation* record,
                         StagedOperation* staged) {
  ASSIGN_OR_RETURN(std::byte* const copy,
                   TakeCopy(places.target, places.extent.target_bytes, pool, staged));
  if (places.reads_target) CopyIn(copy, places.target, places.extent.target_bytes);
  record->set_target(Locate(copy, places.extent.target_bytes));
  staged->result = copy;
  staged->target = places.target;
  return absl::OkStatus();
}

absl::Status StageParts(const OperationPlaces& places, StagingPool& pool, Operation* record,
                        StagedOperation* staged) {
  const bool copies_source = places.extent.source_bytes > 0 && !places.source_is_direct;
  const bool copies_target = places.extent.target_bytes > 0 && !places.target_is_direct;
  if (copies_source && copies_target && Overlap(places)) {
    return StageTogether(places, pool, record, staged);
  }
  if (copies_source) RETURN_IF_ERROR(StageSource(places, pool, record, staged));
  if (copies_target) RETURN_IF_ERROR(StageTarget(places, pool, record, staged));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Region>> StagingPool::Take(size_t size_bytes) {
  auto best = kept_.end();
  for (auto at = kept_.begin(); at != kept_.end(); ++at) {
    if ((*at)->size_bytes() < size_bytes) continue;
    if (best == kept_.end() || (*at)->size_bytes() < (*best)->size_bytes()) best = at;
  }
  if (best != kept_.end()) {
    std::unique_ptr<Region> region = std::move(*best);
    kept_.erase(best);
    return region;
  }
  // Four sizes to each power of two: few are needed, and no region is much too large.
  const size_t step = std::max(absl::bit_floor(size_bytes) / 4, limits::kRegionAlignmentBytes);
  const size_t rounded = RoundUp(size_bytes, step);
  ASSIGN_OR_RETURN(std::unique_ptr<Region> region,
                   Region::Create(rounded, "staged for the daemon"));
  RETURN_IF_ERROR(announce_(*region));
  return region;
}

void StagingPool::GiveBack(std::unique_ptr<Region> region) {
  kept_.push_back(std::move(region));
  if (kept_.size() <= kMostKept) return;
  withdraw_(kept_.front()->id());
  kept_.erase(kept_.begin());
}

absl::Status CopyIntoStaging(const OperationPlaces& places, StagingPool& pool, Operation* record,
                             StagedOperation* staged) {
  *staged = StagedOperation();
  const absl::Status status = StageParts(places, pool, record, staged);
  if (!status.ok()) {
    for (std::unique_ptr<Region>& region : staged->regions) pool.GiveBack(std::move(region));
    *staged = StagedOperation();
    return status;
  }
  staged->target_bytes = places.extent.target_bytes;
  staged->is_direct = (places.source_is_direct && places.extent.source_bytes > 0) ||
                      (places.target_is_direct && places.extent.target_bytes > 0);
  if (places.target_is_direct && places.extent.target_bytes > 0) {
    staged->direct_target = record->target_region;
  }
  return absl::OkStatus();
}

bool MayGoInPieces(const OperationPlaces& places) {
  if (places.source_is_direct && places.target_is_direct) return false;
  return places.source == places.target || !Overlap(places);
}

absl::Status StageInPieces(const OperationPlaces& places, uint64_t piece_bytes, StagingPool& pool,
                           Operation* record, StagedOperation* staged) {
  *staged = StagedOperation();
  ASSIGN_OR_RETURN(std::unique_ptr<Region> ring, pool.Take(piece_ring::SizeOf(piece_bytes)));
  record->set_source({ring->id(), 0});
  record->set_target({kPrivateRegion, 0});
  const PieceFeeder::Tensor tensor{places.source, places.target, places.extent.source_bytes};
  staged->pieces = std::make_unique<PieceFeeder>(*ring, tensor, piece_bytes);
  staged->regions.push_back(std::move(ring));
  return absl::OkStatus();
}

absl::Status CopyOutOfStaging(StagedOperation& staged, StagingPool& pool,
                              const absl::Status& status) {
  absl::Status outcome = status;
  if (status.ok() && staged.pieces != nullptr) staged.pieces->Finish();
  if (status.ok() && staged.target != nullptr) {
    std::memcpy(staged.target, staged.result, staged.target_bytes);
  }
  // What the daemon wrote there after the region was taken back is not in this process's memory.
  if (status.ok() && staged.direct_target != kPrivateRegion && IsUnshared(staged.direct_target)) {
    outcome = absl::AbortedError(
        absl::StrCat("region ", staged.direct_target.value(),
                     " was taken back from the daemon while an operation wrote to it"));
  }
  for (std::unique_ptr<Region>& region : staged.regions) pool.GiveBack(std::move(region));
  staged = StagedOperation();
  return outcome;
}

}  // namespace pelton
