#include "torch_bindings/csrc/weight_slot.h"

#include <c10/core/GradMode.h>

namespace pelton::torch_bindings {

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
