// A slot whose gradients travel as an optimizer's first moments.
#ifndef PELTON_TORCH_BINDINGS_CSRC_MOMENTUM_SLOT_H_
#define PELTON_TORCH_BINDINGS_CSRC_MOMENTUM_SLOT_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/statusor.h"
#include "torch_bindings/csrc/slot.h"

namespace pelton::torch_bindings {

// With m the optimizer's first moment of the parameter, the same on all ranks, and g the gradient:
// beta * m + (1 - beta) * g goes into the bucket, and of the ranks' mean of it, M, the gradient
// becomes (M - beta * m) / (1 - beta), their mean gradient up to what the messages dropped. The
// optimizer makes M of it again when it steps. Nothing but the step changes m, so that gradients
// may be scaled, clipped, added to or thrown away in between, and have the same value on all ranks.
// Threads: as Slot. Owns: as Slot, and a reference to the moment.
class MomentumSlot final : public Slot {
 public:
  // Shape: `moment` has the parameter's.
  MomentumSlot(std::string name, at::Tensor parameter, at::Tensor moment, double beta);

  // Of the rounds to come.
  void set_beta(double beta) { beta_ = beta; }

  // The moment has memory of its own: there is nothing to move in.
  void Adopt() override {}

  absl::StatusOr<void*> Place() override;
  // The gradient counts as zero or, where one exists that all ranks share already, as that.
  absl::StatusOr<void*> PlaceUnused() override;
  // Where no rank used the parameter, the gradient stays what it is.
  void Merge(const CommitRule& rule, bool used_by_any) override;

 private:
  absl::StatusOr<void*> PlaceMoment();

  at::Tensor moment_;
  double beta_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_MOMENTUM_SLOT_H_
