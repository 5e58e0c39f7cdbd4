#include "torch_bindings/csrc/gradient_slot.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "torch_bindings/csrc/shared_allocator.h"

namespace pelton::torch_bindings {

using torch::autograd::variable_list;

GradientSlot::GradientSlot(std::string name, at::Tensor parameter)
    : name_(std::move(name)),
      parameter_(std::move(parameter)),
      dtype_(parameter_.scalar_type()),
      sizes_(parameter_.sizes().vec()),
      size_bytes_(static_cast<uint64_t>(parameter_.numel()) * parameter_.element_size()),
      result_(at::Tensor().getIntrusivePtr()) {}

void GradientSlot::Hook(std::function<void()> on_gradient) {
  accumulator_ = torch::autograd::impl::grad_accumulator(parameter_);
  PELTON_CHECK(accumulator_ != nullptr) << name_ << " does not require a gradient";
  hook_key_ = accumulator_->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [on_gradient = std::move(on_gradient)](const variable_list& outputs, const variable_list&) {
        on_gradient();
        return outputs;
      }));
}

void GradientSlot::Unhook() {
  if (accumulator_ == nullptr) return;
  accumulator_->del_post_hook(hook_key_);
  accumulator_ = nullptr;
}

std::string GradientSlot::Change() const {
  if (parameter_.scalar_type() != dtype_) {
    return absl::StrCat("dtype was ", c10::toString(dtype_), ", is ",
                        c10::toString(parameter_.scalar_type()));
  }
  if (!parameter_.device().is_cpu()) return absl::StrCat("moved to ", parameter_.device().str());
  if (parameter_.sizes() != at::IntArrayRef(sizes_)) return "its shape changed";
  // A cast replaces the accumulator, and the hook goes with it.
  if (torch::autograd::impl::try_get_grad_accumulator(parameter_) != accumulator_) {
    return "its gradient accumulator was replaced";
  }
  return "";
}

void GradientSlot::Bind(void* memory, std::shared_ptr<void> owner) {
  is_segment_ = memory == nullptr;
  if (!is_segment_) MakeView(memory, [owner = std::move(owner)](void*) {});
}

// Autograd gives a gradient its parameter's strides where those are dense; else it is contiguous.
template <typename Deleter>
void GradientSlot::MakeView(void* memory, Deleter deleter) {
  const bool dense = parameter_.is_non_overlapping_and_dense();
  const at::Tensor shape = dense ? parameter_ : parameter_.contiguous();
  view_ = at::from_blob(memory, sizes_, shape.strides(), std::move(deleter),
                        at::TensorOptions().dtype(dtype_));
}

absl::Status GradientSlot::EnsureMemory() {
  if (view_.defined()) return absl::OkStatus();
  ASSIGN_OR_RETURN(void* block, SharedPool().Allocate(std::max<uint64_t>(size_bytes_, 1)));
  MakeView(block, [](void* freed) { SharedPool().Free(freed); });
  return absl::OkStatus();
}

bool GradientSlot::LiesInBucket(const at::Tensor& gradient) const {
  return view_.defined() && gradient.layout() == at::kStrided &&
         gradient.data_ptr() == view_.data_ptr() && HasLayoutOfParameter(gradient);
}

bool GradientSlot::HasLayoutOfParameter(const at::Tensor& gradient) const {
  return gradient.scalar_type() == dtype_ && gradient.is_non_overlapping_and_dense() &&
         gradient.strides() == parameter_.strides();
}

void GradientSlot::CopyIn(const at::Tensor& gradient) {
  if (HasLayoutOfParameter(gradient)) {
    std::memcpy(view_.data_ptr(), gradient.data_ptr(), size_bytes_);
  } else {
    c10::NoGradGuard no_grad;
    view_.copy_(gradient);
  }
  copied_bytes_ += size_bytes_;
}

absl::StatusOr<void*> GradientSlot::Place() {
  at::Tensor& gradient = parameter_.mutable_grad();
  if (gradient.layout() != at::kStrided) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", name_,
        "' has a sparse gradient, which cannot be communicated; build it with sparse=False"));
  }
  if (!gradient.device().is_cpu()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the gradient of parameter '", name_, "' is on ", gradient.device().str()));
  }
  if (LiesInBucket(gradient)) return view_.data_ptr();
  if (is_segment_ && HasLayoutOfParameter(gradient) && !gradient.requires_grad()) {
    const bool is_shared = Locate(gradient.data_ptr(), size_bytes_).region != kPrivateRegion;
    if (is_shared) return gradient.data_ptr();
  }
  RETURN_IF_ERROR(EnsureMemory());
  CopyIn(gradient);
  copy_back_ = gradient.requires_grad();
  if (!copy_back_) gradient = view_;
  return view_.data_ptr();
}

absl::StatusOr<void*> GradientSlot::PlaceUnused() {
  RETURN_IF_ERROR(EnsureMemory());
  const at::Tensor& gradient = parameter_.grad();
  if (gradient.defined()) {
    kept_ = gradient.detach().clone();
    if (!LiesInBucket(gradient)) CopyIn(gradient);
  } else {
    std::memset(view_.data_ptr(), 0, size_bytes_);
  }
  return view_.data_ptr();
}

void GradientSlot::Collect(bool used_by_any) {
  is_dirty = false;
  at::Tensor& gradient = parameter_.mutable_grad();
  if (kept_.defined() && !used_by_any) {
    gradient.data().copy_(kept_);
  } else if (copy_back_) {
    gradient.data().copy_(view_);
  } else if (used_by_any && !gradient.defined()) {
    gradient = view_;
  } else if (used_by_any && kept_.defined() && !LiesInBucket(gradient)) {
    gradient.data().copy_(view_);
  }
  kept_ = at::Tensor();
  copy_back_ = false;
  result_ = WeakTensor(gradient.getIntrusivePtr());
}

bool GradientSlot::HoldsResult() const {
  const auto result = result_.lock();
  return result.defined() && result.get() == parameter_.grad().unsafeGetTensorImpl();
}

void GradientSlot::Release() {
  at::Tensor& gradient = parameter_.mutable_grad();
  if (gradient.defined() && LiesInBucket(gradient)) gradient = gradient.detach().clone();
  view_ = at::Tensor();
}

void GradientSlot::Adopt() {
  at::Tensor& gradient = parameter_.mutable_grad();
  if (is_segment_ || !gradient.defined() || gradient.requires_grad()) return;
  CopyIn(gradient);
  gradient = view_;
  result_ = WeakTensor(gradient.getIntrusivePtr());
}

}  // namespace pelton::torch_bindings
