#include "torch_bindings/csrc/tensor_slots.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/lerp.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/memory/region.h"

namespace pelton::torch_bindings {

GradientSlot::GradientSlot(std::string name, at::Tensor parameter)
    : Slot(std::move(name), parameter, parameter), left_(at::Tensor().getIntrusivePtr()) {}

bool GradientSlot::CanStay(const at::Tensor& gradient) const {
  return is_segment() && HasLayoutOfView(gradient) && !gradient.requires_grad() &&
         Locate(gradient.data_ptr(), size_bytes()).region != kPrivateRegion;
}

absl::StatusOr<void*> GradientSlot::Place() {
  RETURN_IF_ERROR(CheckGradient());
  at::Tensor& gradient = parameter().mutable_grad();
  if (LiesInBucket(gradient)) return view().data_ptr();
  if (CanStay(gradient)) {
    stayed_ = AliasOf(gradient);
    stayed_at_ = stayed_.data_ptr();
    return stayed_.data_ptr();
  }
  RETURN_IF_ERROR(EnsureWritable());
  CopyIn(gradient);
  // One with a graph of its own gets the result back by a copy.
  if (!gradient.requires_grad() && !is_staged()) gradient = AliasOf(view());
  return view().data_ptr();
}

absl::StatusOr<void*> GradientSlot::PlaceUnused() {
  const at::Tensor& gradient = parameter().grad();
  if (gradient.defined()) kept_ = gradient.detach().clone();
  if (gradient.defined() && LiesInBucket(gradient)) return view().data_ptr();
  RETURN_IF_ERROR(EnsureWritable());
  if (gradient.defined()) {
    CopyIn(gradient);
  } else {
    view().zero_();
  }
  return view().data_ptr();
}

absl::Status GradientSlot::CheckMerge() const {
  if (!stayed_.defined() || stayed_.data_ptr() == stayed_at_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the gradient of parameter '", name(),
      "' was given other memory while it was communicated, as share_memory_() in a hook does, or "
      "a torch.multiprocessing.Queue that sends it only then; do so after backward(), and await "
      "what is sent before the next one"));
}

// A hook of the user's may have put another tensor into `.grad` since Place, or none.
void GradientSlot::Merge(const CommitRule&, bool used_by_any) {
  at::Tensor& gradient = parameter().mutable_grad();
  if (!used_by_any) {
    if (kept_.defined() && gradient.defined()) gradient.data().copy_(kept_);
  } else if (!gradient.defined()) {
    gradient = is_staged() ? result().to(parameter().device()) : AliasOf(result());
  } else if (!LiesAt(gradient, result())) {
    gradient.data().copy_(result());
  }
  is_dirty = false;
  kept_ = stayed_ = at::Tensor();
  left_ = WeakTensor(gradient.getIntrusivePtr());
}

bool GradientSlot::HoldsResult() const {
  const auto left = left_.lock();
  return left.defined() && left.get() == parameter().grad().unsafeGetTensorImpl();
}

void GradientSlot::TakeOver(const Slot& before) {
  if (before.HoldsResult()) left_ = WeakTensor(parameter().grad().getIntrusivePtr());
}

void GradientSlot::Adopt() {
  at::Tensor& gradient = parameter().mutable_grad();
  if (is_segment() || is_staged() || !gradient.defined() || gradient.requires_grad()) return;
  CopyIn(gradient);
  gradient = AliasOf(view());
  left_ = WeakTensor(gradient.getIntrusivePtr());
}

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

absl::StatusOr<void*> WeightSlot::Place() {
  CopyIn(parameter());
  return view().data_ptr();
}

void WeightSlot::Merge(const CommitRule& rule, bool) {
  const c10::NoGradGuard no_grad;
  at::Tensor weight = parameter();
  if (rule.kept == 0 && rule.taken == 1) {
    weight.copy_(view());
  } else if (rule.kept == 1) {
    weight.add_(view().to(weight.device()), rule.taken);
  } else {
    weight.mul_(rule.kept).add_(view().to(weight.device()), rule.taken);
  }
}

}  // namespace pelton::torch_bindings
