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

void* WeightSlot::CopyIn() {
  const c10::NoGradGuard no_grad;
  view_.copy_(parameter_);
  return view_.data_ptr();
}

void WeightSlot::Merge(const CommitRule& rule) {
  const c10::NoGradGuard no_grad;
  if (rule.kept == 0 && rule.taken == 1) {
    parameter_.copy_(view_);
  } else if (rule.kept == 1) {
    parameter_.add_(view_.to(device_), rule.taken);
  } else {
    parameter_.mul_(rule.kept).add_(view_.to(device_), rule.taken);
  }
}

double WeightSlot::Sample() const {
  constexpr int64_t kSampledValues = 64;
  const c10::NoGradGuard no_grad;
  return parameter_.reshape({-1}).slice(0, 0, kSampledValues).to(at::kDouble).sum().item<double>();
}

}  // namespace pelton::torch_bindings
