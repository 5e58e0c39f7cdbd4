#include "torch_bindings/csrc/momentum_slot.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/lerp.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "core/base/status.h"

namespace pelton::torch_bindings {

MomentumSlot::MomentumSlot(std::string name, at::Tensor parameter, at::Tensor moment, double beta)
    : Slot(std::move(name), std::move(parameter), moment),
      moment_(std::move(moment)),
      beta_(beta) {}

absl::StatusOr<void*> MomentumSlot::PlaceMoment() {
  RETURN_IF_ERROR(EnsureMemory());
  const c10::NoGradGuard no_grad;
  const at::Tensor& gradient = parameter().grad();
  if (!gradient.defined()) {
    CopyIn(moment_.mul(beta_));
  } else if (is_staged()) {
    CopyIn(moment_.lerp(gradient.to(dtype()), 1 - beta_));
  } else {
    at::lerp_out(view(), moment_, gradient.to(dtype()), 1 - beta_);
  }
  return view().data_ptr();
}

absl::StatusOr<void*> MomentumSlot::Place() {
  RETURN_IF_ERROR(CheckGradient());
  return PlaceMoment();
}

absl::StatusOr<void*> MomentumSlot::PlaceUnused() { return PlaceMoment(); }

// (M - beta m) / (1 - beta) is m + (M - m) / (1 - beta), a single pass.
void MomentumSlot::Merge(const CommitRule&, bool used_by_any) {
  is_dirty = false;
  if (!used_by_any) return;
  const c10::NoGradGuard no_grad;
  at::Tensor& gradient = parameter().mutable_grad();
  if (!gradient.defined()) gradient = at::empty_like(parameter());
  const at::Tensor result = view().to(moment_.device());
  at::Tensor written = gradient.data();
  if (written.scalar_type() == dtype()) {
    at::lerp_out(written, moment_, result, 1 / (1 - beta_));
  } else {
    written.copy_(at::lerp(moment_, result, 1 / (1 - beta_)));
  }
}

}  // namespace pelton::torch_bindings
