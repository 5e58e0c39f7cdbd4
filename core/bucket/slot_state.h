// What the stages of a model keep from round to round, tensor by tensor: to be saved, to be loaded,
// and to be taken along to another plan or another algorithm.
#ifndef PELTON_CORE_BUCKET_SLOT_STATE_H_
#define PELTON_CORE_BUCKET_SLOT_STATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/bucket/plan_instance.h"
#include "core/memory/dtype.h"
#include "core/pipeline/stage.h"

namespace pelton {

// One tensor's share of one buffer of one stage. Buffers may cover a part of a tensor only.
// Threads: a value. Owns: its text; not the elements.
struct SlotState {
  // "<stage>/<buffer>", as "ring exchange/left"; of a second stage of that name "<stage>
  // 2/<buffer>". Not its place in the pipeline, which depends on how the ranks lie on hosts.
  std::string key;
  SlotId slot;
  DType dtype = DType::kFloat32;
  StateScope scope = StateScope::kOwn;
  uint64_t begin_count = 0;  // the tensor's element that the first one belongs to
  absl::Span<std::byte> bytes;
};

// All there is, in the order of the buckets, their stages and their tensors.
std::vector<SlotState> SlotStatesOf(PlanInstance& instance);

// Copies what both have: the elements of the same tensor under the same key and dtype.
void CopySlotStates(absl::Span<const SlotState> from, absl::Span<const SlotState> to);

}  // namespace pelton

#endif  // PELTON_CORE_BUCKET_SLOT_STATE_H_
