#include "torch_bindings/csrc/c10d/rules.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {

ReduceOp OpOf(const Call& call, const ::c10d::ReduceOp& op) {
  using Torch = ::c10d::ReduceOp;
  switch (op.op_) {
    case Torch::SUM:
      return ReduceOp::kSum;
    case Torch::AVG:
      return ReduceOp::kAvg;
    case Torch::PRODUCT:
      return ReduceOp::kProduct;
    case Torch::MIN:
      return ReduceOp::kMin;
    case Torch::MAX:
      return ReduceOp::kMax;
    case Torch::BAND:
      return ReduceOp::kBitAnd;
    case Torch::BOR:
      return ReduceOp::kBitOr;
    case Torch::BXOR:
      return ReduceOp::kBitXor;
    case Torch::PREMUL_SUM:
      ThrowStatus(absl::UnimplementedError(absl::StrCat(
          call.name(), ": op: PREMUL_SUM is not offered; multiply first, then use SUM")));
    default:
      call.Refuse(absl::StrCat("op: ", static_cast<int>(op.op_), " is no reduction"));
  }
}

Rank RootOf(const Call& call, int64_t root, int world_size) {
  if (root < 0 || root >= world_size) {
    call.Refuse(absl::StrCat("root: ", root, " is not in [0, ", world_size, ")"));
  }
  return Rank(static_cast<int32_t>(root));
}

void CheckSize(const Call& call, const std::string& argument, size_t size, size_t expected) {
  if (size == expected) return;
  call.Refuse(absl::StrCat(argument, ": has ", size, " entries instead of ", expected));
}

void CheckWhole(const Call& call, const Named& whole, const Named& part, int parts) {
  if (whole.tensor.scalar_type() != part.tensor.scalar_type()) {
    call.Refuse(absl::StrCat("dtype: ", whole.name, " is ",
                             c10::toString(whole.tensor.scalar_type()), ", ", part.name, " is ",
                             c10::toString(part.tensor.scalar_type())));
  }
  if (whole.tensor.numel() != part.tensor.numel() * parts) {
    call.Refuse(absl::StrCat("count: ", whole.name, " has ", whole.tensor.numel(), " elements, ",
                             part.name, " has ", part.tensor.numel(), " of ", parts, " ranks"));
  }
}

bool AreEqual(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() != tensors.front().numel()) return false;
  }
  return true;
}

}  // namespace pelton::torch_bindings
