// How a trainer's tensors enter a model's buckets, and how results leave them.
#ifndef PELTON_CORE_ROUND_TENSOR_PORT_H_
#define PELTON_CORE_ROUND_TENSOR_PORT_H_

#include <cstddef>
#include <cstdint>

#include "core/base/ids.h"
#include "core/round/schedule.h"

namespace pelton {

// Threads: the trainer's; under TriggerKind::kTimer CopyIn and Merge also the rounds' own, while
// the trainer does not hold the tensors. Owns: what its subclass says.
class TensorPort {
 public:
  virtual ~TensorPort() = default;
  // The slot's elements are at `memory` from now on, until it is placed anew.
  virtual void Place(SlotId slot, std::byte* memory) = 0;
  // Copies the tensor as it is now to its place. Blocks: never.
  virtual void CopyIn(SlotId slot) = 0;
  // Merges what lies at its place into the tensor. Cannot fail, so that all tensors of a round
  // change together (COMMIT-1). Blocks: never.
  virtual void Merge(SlotId slot, const CommitRule& rule) = 0;
  // Changes when something writes to the tensors.
  virtual uint64_t Fingerprint() const = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_TENSOR_PORT_H_
