// A slot whose tensor is an optimizer's first moment of the parameter.
#ifndef PELTON_TORCH_BINDINGS_CSRC_MOMENTUM_SLOT_H_
#define PELTON_TORCH_BINDINGS_CSRC_MOMENTUM_SLOT_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "torch_bindings/csrc/slot.h"

namespace pelton::torch_bindings {

// The optimizer's tensor m lies in the bucket. When the gradient g is final, m becomes
// beta * m + (1 - beta) * g there, in one pass; after the round it is the ranks' average. The
// gradient stays this rank's own.
// Threads: as Slot. Owns: as Slot, and a reference to the moment.
class MomentumSlot final : public Slot {
 public:
  // Shape: `moment` has the parameter's.
  MomentumSlot(std::string name, at::Tensor parameter, at::Tensor moment, double beta);

  // Of the rounds to come.
  void set_beta(double beta) { beta_ = beta; }

  void Adopt() override;
  // Errors: also FailedPrecondition: the backward has added to a gradient that an earlier round has
  // taken already.
  absl::StatusOr<void*> Place() override;
  // Takes the gradient as zero.
  absl::StatusOr<void*> PlaceUnused() override;
  // Where only other ranks used the parameter, its gradient here becomes zero, so that the
  // optimizer steps it on all ranks; where no rank did, the moment is what it was.
  void Collect(bool used_by_any) override;
  void Release() override;

 private:
  bool GradientWasTaken() const;

  at::Tensor moment_;
  double beta_;
  at::Tensor kept_;       // the moment before a round in which this rank did not use the parameter
  WeakTensor taken_;      // the gradient of the last round,
  uint32_t version_ = 0;  // and how often it had been written to then
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_MOMENTUM_SLOT_H_
