#include "torch_bindings/csrc/momentum_slot.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton::torch_bindings {

MomentumSlot::MomentumSlot(std::string name, at::Tensor parameter, at::Tensor moment, double beta)
    : Slot(std::move(name), std::move(parameter), moment),
      moment_(std::move(moment)),
      beta_(beta),
      taken_(at::Tensor().getIntrusivePtr()) {}

void MomentumSlot::Adopt() {
  if (is_staged() || !EnsureMemory().ok()) return;  // a segment without memory: Place tries again
  CopyIn(moment_);
  moment_.set_data(view());
}

// Nothing but this accumulation was written to it since: it holds what was communicated and more.
bool MomentumSlot::GradientWasTaken() const {
  const auto taken = taken_.lock();
  const at::Tensor& gradient = parameter().grad();
  return taken.defined() && taken.get() == gradient.unsafeGetTensorImpl() &&
         gradient._version() == version_ + 1;
}

absl::StatusOr<void*> MomentumSlot::Place() {
  RETURN_IF_ERROR(CheckGradient());
  if (GradientWasTaken()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter '", name(),
        "': this backward added to a gradient that is in the optimizer's moment already; call "
        "zero_grad() before it, or no_sync() around the earlier one"));
  }
  RETURN_IF_ERROR(EnsureMemory());
  if (!LiesInBucket(moment_)) Adopt();
  const c10::NoGradGuard no_grad;
  const at::Tensor& gradient = parameter().grad();
  moment_.lerp_(gradient.scalar_type() == dtype() ? gradient : gradient.to(dtype()), 1 - beta_);
  if (is_staged()) CopyIn(moment_);
  return view().data_ptr();
}

absl::StatusOr<void*> MomentumSlot::PlaceUnused() {
  RETURN_IF_ERROR(EnsureMemory());
  if (!LiesInBucket(moment_)) Adopt();
  const c10::NoGradGuard no_grad;
  kept_ = moment_.clone();
  moment_.mul_(beta_);
  if (is_staged()) CopyIn(moment_);
  return view().data_ptr();
}

void MomentumSlot::Collect(bool used_by_any) {
  const c10::NoGradGuard no_grad;
  is_dirty = false;
  at::Tensor& gradient = parameter().mutable_grad();
  if (kept_.defined() && !used_by_any) {
    moment_.copy_(kept_);
  } else if (is_staged()) {
    moment_.copy_(view());
  }
  if (used_by_any && !gradient.defined()) gradient = at::zeros_like(parameter());
  kept_ = at::Tensor();
  taken_ = WeakTensor(gradient.getIntrusivePtr());
  version_ = gradient.defined() ? gradient._version() : 0;
}

void MomentumSlot::Release() {
  if (LiesInBucket(moment_)) moment_.set_data(moment_.detach().clone());
  view() = at::Tensor();
}

}  // namespace pelton::torch_bindings
