#include "torch_bindings/csrc/gradient_slot.h"

#include <utility>

#include "core/base/status.h"
#include "core/memory/region.h"

namespace pelton::torch_bindings {

GradientSlot::GradientSlot(std::string name, at::Tensor parameter)
    : Slot(std::move(name), parameter, parameter), result_(at::Tensor().getIntrusivePtr()) {}

absl::StatusOr<void*> GradientSlot::Place() {
  RETURN_IF_ERROR(CheckGradient());
  at::Tensor& gradient = parameter().mutable_grad();
  if (LiesInBucket(gradient)) return view().data_ptr();
  if (is_segment() && HasLayoutOfView(gradient) && !gradient.requires_grad()) {
    const bool is_shared = Locate(gradient.data_ptr(), size_bytes()).region != kPrivateRegion;
    if (is_shared) return gradient.data_ptr();
  }
  RETURN_IF_ERROR(EnsureMemory());
  CopyIn(gradient);
  copy_back_ = gradient.requires_grad() || is_staged();
  if (!copy_back_) gradient = view();
  return view().data_ptr();
}

absl::StatusOr<void*> GradientSlot::PlaceUnused() {
  RETURN_IF_ERROR(EnsureMemory());
  const at::Tensor& gradient = parameter().grad();
  if (gradient.defined()) {
    kept_ = gradient.detach().clone();
    if (!LiesInBucket(gradient)) CopyIn(gradient);
    copy_back_ = is_staged();
  } else {
    view().zero_();
  }
  return view().data_ptr();
}

void GradientSlot::Collect(bool used_by_any) {
  is_dirty = false;
  at::Tensor& gradient = parameter().mutable_grad();
  if (kept_.defined() && !used_by_any) {
    gradient.data().copy_(kept_);
  } else if (copy_back_) {
    gradient.data().copy_(view());
  } else if (used_by_any && !gradient.defined()) {
    gradient = view().to(parameter().device());  // the view itself, unless it is staged
  } else if (used_by_any && kept_.defined() && !LiesInBucket(gradient)) {
    gradient.data().copy_(view());
  }
  kept_ = at::Tensor();
  copy_back_ = false;
  result_ = WeakTensor(gradient.getIntrusivePtr());
}

bool GradientSlot::HoldsResult() const {
  const auto result = result_.lock();
  return result.defined() && result.get() == parameter().grad().unsafeGetTensorImpl();
}

void GradientSlot::Release() {
  at::Tensor& gradient = parameter().mutable_grad();
  if (gradient.defined() && LiesInBucket(gradient)) gradient = gradient.detach().clone();
  view() = at::Tensor();
}

void GradientSlot::Adopt() {
  at::Tensor& gradient = parameter().mutable_grad();
  if (is_segment() || is_staged() || !gradient.defined() || gradient.requires_grad()) return;
  CopyIn(gradient);
  gradient = view();
  result_ = WeakTensor(gradient.getIntrusivePtr());
}

}  // namespace pelton::torch_bindings
