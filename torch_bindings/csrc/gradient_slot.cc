#include "torch_bindings/csrc/gradient_slot.h"

#include <utility>

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

void GradientSlot::Adopt() {
  at::Tensor& gradient = parameter().mutable_grad();
  if (is_segment() || is_staged() || !gradient.defined() || gradient.requires_grad()) return;
  CopyIn(gradient);
  gradient = AliasOf(view());
  left_ = WeakTensor(gradient.getIntrusivePtr());
}

}  // namespace pelton::torch_bindings
