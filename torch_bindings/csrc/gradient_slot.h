// A slot whose tensor is the parameter's gradient.
#ifndef PELTON_TORCH_BINDINGS_CSRC_GRADIENT_SLOT_H_
#define PELTON_TORCH_BINDINGS_CSRC_GRADIENT_SLOT_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/statusor.h"
#include "torch_bindings/csrc/slot.h"

namespace pelton::torch_bindings {

// Threads: as Slot. Owns: as Slot, a gradient that may have to be put back, and during a round the
// memory of one that stayed where it was.
class GradientSlot final : public Slot {
 public:
  GradientSlot(std::string name, at::Tensor parameter);

  void Adopt() override;
  // The gradient stays if it can be communicated where it lies, else it is copied once into the
  // bucket and the parameter's gradient becomes a tensor that lies there.
  absl::StatusOr<void*> Place() override;
  // Contributes zeros or, where a gradient exists that all ranks share already, that gradient.
  absl::StatusOr<void*> PlaceUnused() override;
  // Makes the result the parameter's gradient.
  void Merge(const CommitRule& rule, bool used_by_any) override;
  bool HoldsResult() const override;

 private:
  // Whether the gradient can be communicated where it is.
  bool CanStay(const at::Tensor& gradient) const;
  // Where the round puts the result.
  const at::Tensor& result() const { return stayed_.defined() ? stayed_ : view(); }

  at::Tensor kept_;  // what the gradient was, to be put back if no rank used the parameter
  // The gradient of the round, where it stayed: peers reduce it there, even if a hook of the user's
  // gives `.grad` another tensor or other memory meanwhile.
  at::Tensor stayed_;
  WeakTensor left_;  // the gradient that the last round left
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_GRADIENT_SLOT_H_
