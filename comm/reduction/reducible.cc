#include "comm/reduction/reducible.h"

#include "absl/strings/str_cat.h"

namespace pelton {
namespace {

bool IsReducible(DType dtype, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return true;
    case ReduceOp::kAvg:
      return dtype != DType::kBool;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !IsComplex(dtype);
    case ReduceOp::kBitOr:
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitXor:
      return !IsFloatingPoint(dtype);
  }
  return false;
}

}  // namespace

absl::Status CheckReducible(DType dtype, ReduceOp op) {
  if (static_cast<int>(dtype) >= kDTypeCount) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype: ", static_cast<int>(dtype), " is not one, with op ", NameOf(op)));
  }
  if (IsReducible(dtype, op)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("op: ", NameOf(op), " (", static_cast<int>(op),
                                                 ") has no meaning for dtype ", NameOf(dtype)));
}

}  // namespace pelton
