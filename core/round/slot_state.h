// What the stages of a model keep from round to round, tensor by tensor: to be saved, to be loaded,
// and to be taken along to another plan or another algorithm.
#ifndef PELTON_CORE_ROUND_SLOT_STATE_H_
#define PELTON_CORE_ROUND_SLOT_STATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/memory/dtype.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"
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

// What a stage keeps on one rank alone for each element, on its way to a plan in which other
// elements are this rank's: one array per buffer, of all tensors' elements: first this rank's and
// zeros, and once the sums over the ranks are in it, everyone's. Threads: one at a time. Owns: the
// arrays, which stay where they are when it is moved.
class SharedState {
 public:
  SharedState() = default;
  // `names`: those of rank 0. Of `mine` it takes what has one of them.
  SharedState(const Plan& plan, absl::string_view names, absl::Span<const SlotStateView> mine);

  // A line for each buffer of StateScope::kShared: its dtype and its key.
  static std::string NamesOf(absl::Span<const SlotStateView> states);

  // Allreduces that fill the arrays, the same on all ranks.
  std::vector<Operation> Sums();
  // Fills what `states` have of the same names and tensors.
  void CopyTo(absl::Span<const SlotStateView> states) const;

 private:
  struct Array {
    std::string key;
    DType dtype = DType::kFloat32;
    std::vector<std::byte> elements;
  };

  // Elements of a tensor that are in the state's memory, without the gap behind the tensor.
  struct Part {
    std::byte* in_state = nullptr;
    size_t begin_bytes = 0;  // in its array
    size_t size_bytes = 0;
  };

  // By array, those of `states`.
  std::vector<std::vector<Part>> PartsOf(absl::Span<const SlotStateView> states) const;

  std::vector<uint64_t> begins_;  // of each slot's elements in an array, and their end
  std::vector<Array> arrays_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_SLOT_STATE_H_
