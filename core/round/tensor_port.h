// How a trainer's tensors enter a model's buckets, and how results leave them.
#ifndef PELTON_CORE_ROUND_TENSOR_PORT_H_
#define PELTON_CORE_ROUND_TENSOR_PORT_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/round/schedule.h"

namespace pelton {

// Threads: the trainer's; under TriggerKind::kTimer Bring and Merge also the rounds' own, while the
// trainer does not hold the tensors. Owns: what its subclass says.
class TensorPort {
 public:
  // Where a tensor's elements are, and whether this rank has used it in the round.
  struct Brought {
    void* data = nullptr;
    bool is_used = true;
  };

  virtual ~TensorPort() = default;
  // The slot's place is at `memory` from now on, until its Release. Null: it is the tensor's own,
  // in memory that peers can reach.
  virtual void Place(SlotId slot, std::byte* memory) = 0;
  // Brings the tensor as it is now to its place. `is_used` false: nothing has made one in this
  // round; the port may know better. Blocks: never. Errors: the tensor cannot be communicated.
  virtual absl::StatusOr<Brought> Bring(SlotId slot, bool is_used) = 0;
  // Before the first Merge of a round that is complete on this rank. Blocks: until `deadline`.
  // Errors: the tensors are not to be had; then nothing is merged.
  virtual absl::Status BeginMerge(absl::Time deadline) { return absl::OkStatus(); }
  // Merges what lies at its place into the tensor; `used_by_any`: some rank has used it. Cannot
  // fail, so that all tensors of a round change together (COMMIT-1). Blocks: never.
  virtual void Merge(SlotId slot, const CommitRule& rule, bool used_by_any) = 0;
  // After the last one: whatever else the round's results change, and the tensors are given free.
  virtual absl::Status EndMerge() { return absl::OkStatus(); }
  // The place is the slot's no longer.
  virtual void Release(SlotId) {}
  // Changes when something writes to the tensors. Of tensors that are merged some time after they
  // were brought.
  virtual uint64_t Fingerprint() const { return 0; }
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_TENSOR_PORT_H_
