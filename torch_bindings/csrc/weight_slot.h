// A slot whose tensor is the parameter itself, or another one that is communicated between steps.
#ifndef PELTON_TORCH_BINDINGS_CSRC_WEIGHT_SLOT_H_
#define PELTON_TORCH_BINDINGS_CSRC_WEIGHT_SLOT_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/statusor.h"
#include "torch_bindings/csrc/slot.h"

namespace pelton::torch_bindings {

// Its place in the bucket is a copy, on the host: that of a GPU's tensor is waited for.
// Threads: the trainer's, and that of rounds by a timer, one at a time. Owns: as Slot.
class WeightSlot final : public Slot {
 public:
  WeightSlot(const std::string& name, const at::Tensor& parameter)
      : Slot(name, parameter, parameter) {}

  void Adopt() override {}
  absl::StatusOr<void*> Place() override;
  absl::StatusOr<void*> PlaceUnused() override { return Place(); }
  // Graphs that were made before and still need its old values notice, as after an optimizer's
  // step.
  void Merge(const CommitRule& rule, bool used_by_any) override;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_WEIGHT_SLOT_H_
