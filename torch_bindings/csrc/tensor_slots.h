// The slots of a bucket's tensors: gradients, an optimizer's first moments, weights.
#ifndef PELTON_TORCH_BINDINGS_CSRC_TENSOR_SLOTS_H_
#define PELTON_TORCH_BINDINGS_CSRC_TENSOR_SLOTS_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/statusor.h"
#include "torch_bindings/csrc/slot.h"

namespace pelton::torch_bindings {

// A slot whose tensor is the parameter's gradient.
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
  absl::Status CheckMerge() const override;
  // Makes the result the parameter's gradient.
  void Merge(const CommitRule& rule, bool used_by_any) override;
  bool HoldsResult() const override;
  void TakeOver(const Slot& before) override;

 private:
  // Whether the gradient can be communicated where it is.
  bool CanStay(const at::Tensor& gradient) const;
  // Where the round puts the result.
  const at::Tensor& result() { return stayed_.defined() ? stayed_ : view(); }

  at::Tensor kept_;  // what the gradient was, to be put back if no rank used the parameter
  // The gradient of the round, where it stayed: peers reduce it there, even if a hook of the user's
  // gives `.grad` another tensor or other memory meanwhile.
  at::Tensor stayed_;
  const void* stayed_at_ = nullptr;
  WeakTensor left_;  // the gradient that the last round left
};

// A slot whose gradients travel as an optimizer's first moments.
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

// A slot whose tensor is the parameter itself, or another one that is communicated between steps.
// Its place in the bucket is a copy. Where that is on the host, the copy of a GPU's tensor is
// waited for.
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

#endif  // PELTON_TORCH_BINDINGS_CSRC_TENSOR_SLOTS_H_
