// What a stage keeps on one rank alone for each element, on its way to a plan in which other
// elements are this rank's.
#ifndef PELTON_CORE_ROUND_SHARED_STATE_H_
#define PELTON_CORE_ROUND_SHARED_STATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/memory/dtype.h"
#include "core/pipeline/operation.h"
#include "core/plan/plan.h"
#include "core/round/slot_state.h"

namespace pelton {

// One array per buffer, of all tensors' elements: first this rank's and zeros, and once the sums
// over the ranks are in it, everyone's. Threads: one at a time. Owns: the arrays, which stay where
// they are when it is moved.
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

#endif  // PELTON_CORE_ROUND_SHARED_STATE_H_
