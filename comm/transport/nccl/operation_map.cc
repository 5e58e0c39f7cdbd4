#include "comm/transport/nccl/operation_map.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "comm/reduction/reducible.h"
#include "core/base/status.h"

namespace pelton::nccl {
namespace {

struct TypeRow {
  Type type;
  uint64_t per_element;
};

std::optional<TypeRow> TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return TypeRow{Type::kFloat32, 1};
    case DType::kFloat64:
      return TypeRow{Type::kFloat64, 1};
    case DType::kFloat16:
      return TypeRow{Type::kFloat16, 1};
    case DType::kBFloat16:
      return TypeRow{Type::kBFloat16, 1};
    case DType::kUInt8:
    case DType::kBool:
      return TypeRow{Type::kUInt8, 1};
    case DType::kInt8:
      return TypeRow{Type::kInt8, 1};
    case DType::kInt32:
      return TypeRow{Type::kInt32, 1};
    case DType::kInt64:
      return TypeRow{Type::kInt64, 1};
    case DType::kComplex64:
      return TypeRow{Type::kFloat32, 2};
    case DType::kComplex128:
      return TypeRow{Type::kFloat64, 2};
    case DType::kInt16:
      return std::nullopt;
  }
  return std::nullopt;
}

// "or" of zeros and ones is their maximum, "and" their minimum.
std::optional<Op> OpOfBool(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBitOr:
      return Op::kMax;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
      return Op::kMin;
    default:
      return std::nullopt;
  }
}

std::optional<Op> OpOf(DType dtype, ReduceOp op) {
  if (dtype == DType::kBool) return OpOfBool(op);
  switch (op) {
    case ReduceOp::kSum:
      return Op::kSum;
    case ReduceOp::kAvg:
      return Op::kAvg;
    case ReduceOp::kProduct:
      return IsComplex(dtype) ? std::nullopt : std::optional(Op::kProduct);
    case ReduceOp::kMin:
      return Op::kMin;
    case ReduceOp::kMax:
      return Op::kMax;
    default:
      return std::nullopt;
  }
}

}  // namespace

bool Reduces(DType dtype, ReduceOp op) {
  return CheckReducible(dtype, op).ok() && TypeOf(dtype).has_value() && OpOf(dtype, op).has_value();
}

absl::StatusOr<Mapping> MappingOf(const Operation& operation, const NcclLibrary& library) {
  if (!kNcclKinds.Contains(operation.kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("kind: ", NameOf(operation.kind),
                     " is none that NCCL runs; copy the tensors to the host and launch it there"));
  }
  if (IsPointToPoint(operation.kind) && operation.tag != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tag: ", operation.tag,
                     "; NCCL has none, messages to a peer match in launch order: use 0"));
  }
  if (!pelton::Reduces(operation.kind))
    return Mapping{Type::kInt8, SizeOf(operation.dtype), Op::kSum};
  const std::optional<TypeRow> type = TypeOf(operation.dtype);
  const std::optional<Op> op = OpOf(operation.dtype, operation.reduce_op);
  if (!type.has_value() || !op.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "op: NCCL cannot reduce ", NameOf(operation.dtype), " by ", NameOf(operation.reduce_op),
        "; gather the ranks' elements and combine them on the device, or reduce on the host"));
  }
  if (*op == Op::kAvg) RETURN_IF_ERROR(library.Require(Feature::kAvg));
  return Mapping{type->type, type->per_element, *op};
}

}  // namespace pelton::nccl
