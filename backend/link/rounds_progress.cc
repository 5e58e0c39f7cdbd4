#include "backend/link/rounds_progress.h"

#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/memory/dtype.h"
#include "core/plan/plan.h"

namespace pelton {

void KeepLast(ModelRounds& rounds, Round ended, const std::vector<bool>& runs,
              RoundsProgress& progress) {
  const size_t count = rounds.plan().slots().size();
  RoundsProgress::Last& last = progress.last;
  progress.results.resize(count);
  last.round = ended;
  last.runs = runs;
  last.results.resize(count);
  last.is_used_by_any.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const SlotResult result = rounds.ResultOf(SlotId(static_cast<int32_t>(i)));
    if (!progress.results[i].empty()) {
      last.results[i] = std::move(progress.results[i]);
    } else {
      last.results[i].assign(result.data, result.data + result.size_bytes);
    }
    last.is_used_by_any[i] = result.used_by_any;
  }
}

void KeepComplete(ModelRounds& rounds, absl::Span<const BucketId> complete,
                  RoundsProgress& progress) {
  const Plan& plan = rounds.plan();
  progress.is_complete.resize(plan.buckets().size(), false);
  progress.results.resize(plan.slots().size());
  for (BucketId bucket : complete) {
    if (progress.is_complete[static_cast<size_t>(bucket.value())]) continue;
    progress.is_complete[static_cast<size_t>(bucket.value())] = true;
    for (SlotId slot : plan.bucket(bucket).slots) {
      const std::byte* const data = rounds.DataOf(slot);
      progress.results[static_cast<size_t>(slot.value())].assign(data,
                                                                 data + plan.slot(slot).size_bytes);
    }
  }
}

absl::StatusOr<std::byte*> PlaceNow(const ModelRounds& rounds, const LinkPage& page,
                                    const TrainerRegions* regions, SlotId slot) {
  const SlotLayout& layout = rounds.plan().slot(slot);
  if (!layout.standalone) return rounds.DataOf(slot);
  const std::string& name = rounds.plan().tensor(slot).name;
  const PageSlot& words = page.slot(slot);
  const Location trainers{RegionId(words.region.load(std::memory_order_relaxed)),
                          words.offset.load(std::memory_order_relaxed)};
  if (regions == nullptr || trainers.offset % SizeOf(rounds.plan().tensor(slot).dtype) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page: tensor '", name, "' at ", trainers.offset, " of a region"));
  }
  ASSIGN_OR_RETURN(const TrainerRegions::Place place,
                   regions->PlaceOf(trainers, layout.size_bytes, name));
  return place.region->data() + place.location.offset;
}

absl::Status BringBack(const SlotCopies& copies, const ModelRounds& rounds, const LinkPage& page,
                       const TrainerRegions* regions) {
  for (size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].empty()) continue;
    ASSIGN_OR_RETURN(std::byte* const place,
                     PlaceNow(rounds, page, regions, SlotId(static_cast<int32_t>(i))));
    std::memcpy(place, copies[i].data(), copies[i].size());
  }
  return absl::OkStatus();
}

}  // namespace pelton
