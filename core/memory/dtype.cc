#include "core/memory/dtype.h"

#include "core/base/check.h"

namespace pelton {
namespace {

struct DTypeTraits {
  absl::string_view name;
  size_t size_bytes;
  bool is_floating_point;
};

constexpr DTypeTraits kTraits[kDTypeCount] = {
    {"float32", 4, true}, {"float64", 8, true}, {"float16", 2, true},   {"bfloat16", 2, true},
    {"uint8", 1, false},  {"int8", 1, false},   {"int16", 2, false},    {"int32", 4, false},
    {"int64", 8, false},  {"bool", 1, false},   {"complex64", 8, true}, {"complex128", 16, true},
};

const DTypeTraits& TraitsOf(DType dtype) {
  PELTON_CHECK(static_cast<int>(dtype) < kDTypeCount) << static_cast<int>(dtype);
  return kTraits[static_cast<int>(dtype)];
}

}  // namespace

size_t SizeOf(DType dtype) { return TraitsOf(dtype).size_bytes; }
absl::string_view NameOf(DType dtype) { return TraitsOf(dtype).name; }
bool IsFloatingPoint(DType dtype) { return TraitsOf(dtype).is_floating_point; }
bool IsComplex(DType dtype) { return RealTypeOf(dtype) != dtype; }

DType RealTypeOf(DType dtype) {
  if (dtype == DType::kComplex64) return DType::kFloat32;
  return dtype == DType::kComplex128 ? DType::kFloat64 : dtype;
}

absl::string_view NameOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "SUM";
    case ReduceOp::kProduct:
      return "PRODUCT";
    case ReduceOp::kMin:
      return "MIN";
    case ReduceOp::kMax:
      return "MAX";
    case ReduceOp::kBitOr:
      return "BOR";
    case ReduceOp::kBitAnd:
      return "BAND";
    case ReduceOp::kBitXor:
      return "BXOR";
    case ReduceOp::kAvg:
      return "AVG";
  }
  return "unknown";
}

}  // namespace pelton
