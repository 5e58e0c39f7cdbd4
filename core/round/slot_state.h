// What the stages of a model keep from round to round, tensor by tensor: to be saved, to be loaded,
// and to be taken along to another plan or another algorithm.
#ifndef PELTON_CORE_ROUND_SLOT_STATE_H_
#define PELTON_CORE_ROUND_SLOT_STATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/memory/dtype.h"
#include "core/pipeline/stage.h"
#include "core/round/plan_instance.h"

namespace pelton {

// One tensor's share of one buffer of one stage. Buffers may cover a part of a tensor only.
// Threads: a value. Owns: its text, and the elements where `Bytes` does.
template <typename Bytes>
struct BasicSlotState {
  // "<stage>/<buffer>", as "ring exchange/left"; of a second stage of that name "<stage>
  // 2/<buffer>". Not its place in the pipeline, which depends on how the ranks lie on hosts.
  std::string key;
  SlotId slot;
  DType dtype = DType::kFloat32;
  StateScope scope = StateScope::kOwn;
  uint64_t begin_count = 0;  // the tensor's element that the first one belongs to
  Bytes bytes;
};
// A copy, and the place in the stage's own memory.
using SlotState = BasicSlotState<std::vector<std::byte>>;
using SlotStateView = BasicSlotState<absl::Span<std::byte>>;

// All there is, in the order of the buckets, their stages and their tensors.
std::vector<SlotStateView> SlotStatesOf(PlanInstance& instance);
std::vector<SlotState> CopiesOf(absl::Span<const SlotStateView> states);

// Copies what both have: the elements of the same tensor under the same key and dtype.
void CopySlotStates(absl::Span<const SlotState> from, absl::Span<const SlotStateView> to);
void CopySlotStates(absl::Span<const SlotStateView> from, absl::Span<const SlotStateView> to);

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_SLOT_STATE_H_
