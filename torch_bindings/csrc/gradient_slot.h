// A slot whose tensor is the parameter's gradient.
#ifndef PELTON_TORCH_BINDINGS_CSRC_GRADIENT_SLOT_H_
#define PELTON_TORCH_BINDINGS_CSRC_GRADIENT_SLOT_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/statusor.h"
#include "torch_bindings/csrc/slot.h"

namespace pelton::torch_bindings {

// Threads: as Slot. Owns: as Slot, and a gradient that may have to be put back.
class GradientSlot final : public Slot {
 public:
  GradientSlot(std::string name, at::Tensor parameter);

  void Adopt() override;
  // The gradient stays if it can be communicated where it lies, else it is copied once into the
  // bucket and the parameter's gradient becomes a view of the bucket.
  absl::StatusOr<void*> Place() override;
  // Contributes zeros or, where a gradient exists that all ranks share already, that gradient.
  absl::StatusOr<void*> PlaceUnused() override;
  // Makes the result the parameter's gradient.
  void Collect(bool used_by_any) override;
  void Release() override;
  bool HoldsResult() const override;

 private:
  at::Tensor kept_;  // what the gradient was, to be put back if no rank used the parameter
  // The gradient carries a graph of its own and cannot be replaced by the view.
  bool copy_back_ = false;
  WeakTensor result_;  // the gradient that the last round left
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_GRADIENT_SLOT_H_
