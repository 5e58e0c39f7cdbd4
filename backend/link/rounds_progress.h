// What the rounds of a model have come to when its trainer is gone, for another one in its place.
#ifndef PELTON_BACKEND_LINK_ROUNDS_PROGRESS_H_
#define PELTON_BACKEND_LINK_ROUNDS_PROGRESS_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backend/link/page.h"
#include "backend/link/trainer_regions.h"
#include "core/base/ids.h"
#include "core/round/model_rounds.h"

namespace pelton {

// A copy of each slot's elements, by slot; empty: there is none of that slot. Copies, because the
// next trainer writes where the results lie, and what lies elsewhere is the former one's memory.
using SlotCopies = std::vector<std::vector<std::byte>>;

// Threads: a value. Owns: copies.
struct RoundsProgress {
  // The round before the open one, whose results a trainer may have been given and not kept.
  struct Last {
    Round round;  // 0: it is not known
    SlotCopies results;
    std::vector<bool> is_used_by_any;  // by slot
    std::vector<bool> runs;            // by bucket: the pipeline has run in it
  };
  Last last;
  // Of the open round: buckets that are complete, and of their slots whether this rank has used the
  // tensor, and the result.
  std::vector<bool> is_complete;
  std::vector<bool> is_used;
  SlotCopies results;
};

// `rounds` has just ended `ended`, in which the buckets `runs` had their pipelines run: fills
// `progress.last`, and takes `progress.results` for it, because a standalone tensor of a bucket
// that was complete already lay in the memory of a trainer that is gone.
void KeepLast(ModelRounds& rounds, Round ended, const std::vector<bool>& runs,
              RoundsProgress& progress);
// Of the buckets of the open round that are `complete`; of those that were so already the copy
// stays, because a trainer may have written there since.
void KeepComplete(ModelRounds& rounds, absl::Span<const BucketId> complete,
                  RoundsProgress& progress);

// Where a trainer has its tensors now, which the page says of standalone ones. Errors: those of
// TrainerRegions::PlaceOf; InvalidArgument: the plan has none such.
absl::StatusOr<std::byte*> PlaceNow(const ModelRounds& rounds, const LinkPage& page,
                                    const TrainerRegions* regions, SlotId slot);
// Copies what there are copies of to where a trainer has its tensors now.
absl::Status BringBack(const SlotCopies& copies, const ModelRounds& rounds, const LinkPage& page,
                       const TrainerRegions* regions);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_ROUNDS_PROGRESS_H_
