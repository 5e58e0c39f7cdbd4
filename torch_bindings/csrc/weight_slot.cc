#include "torch_bindings/csrc/weight_slot.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace pelton::torch_bindings {

WeightSlot::WeightSlot(std::string name, at::Tensor parameter)
    : name_(std::move(name)),
      parameter_(std::move(parameter)),
      dtype_(parameter_.scalar_type()),
      device_(parameter_.device()),
      sizes_(parameter_.sizes().vec()) {}

std::string WeightSlot::Change() const {
  if (parameter_.scalar_type() != dtype_) {
    return absl::StrCat("dtype was ", c10::toString(dtype_), ", is ",
                        c10::toString(parameter_.scalar_type()));
  }
  if (parameter_.device() != device_) {
    return absl::StrCat("moved from ", device_.str(), " to ", parameter_.device().str());
  }
  if (parameter_.sizes() != at::IntArrayRef(sizes_)) return "its shape changed";
  return "";
}

void WeightSlot::Bind(void* memory) {
  const bool dense = parameter_.is_non_overlapping_and_dense();
  const at::Tensor shape = dense ? parameter_ : parameter_.contiguous();
  view_ = at::from_blob(memory, sizes_, shape.strides(), at::TensorOptions().dtype(dtype_));
}

void WeightSlot::CopyIn() {
  const c10::NoGradGuard no_grad;
  view_.copy_(parameter_);
}

void WeightSlot::Merge(double kept, double taken) {
  const c10::NoGradGuard no_grad;
  if (kept == 0 && taken == 1) {
    parameter_.copy_(view_);
  } else if (kept == 1) {
    parameter_.add_(view_.to(device_), taken);
  } else {
    parameter_.mul_(kept).add_(view_.to(device_), taken);
  }
}

at::Tensor WeightSlot::Result() const { return view_.reshape({-1}).clone(); }

absl::Status WeightSlot::SetResult(const at::Tensor& values) {
  if (values.dim() != 1 || values.numel() != view_.numel() || values.scalar_type() != dtype_ ||
      !values.device().is_cpu()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the result for '", name_, "' has ", values.numel(), " elements of ",
                     c10::toString(values.scalar_type()), ", not ", view_.numel(), " of ",
                     c10::toString(dtype_), " on the CPU"));
  }
  view_.copy_(values.view(sizes_));
  return absl::OkStatus();
}

}  // namespace pelton::torch_bindings
