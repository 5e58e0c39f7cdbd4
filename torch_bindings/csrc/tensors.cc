#include "torch_bindings/csrc/tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/fork.h"
#include "torch_bindings/csrc/shared_allocator.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {

absl::StatusOr<DType> ToDType(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kByte:
      return DType::kUInt8;
    case at::kChar:
      return DType::kInt8;
    case at::kShort:
      return DType::kInt16;
    case at::kInt:
      return DType::kInt32;
    case at::kLong:
      return DType::kInt64;
    case at::kBool:
      return DType::kBool;
    case at::kComplexFloat:
      return DType::kComplex64;
    case at::kComplexDouble:
      return DType::kComplex128;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("dtype: ", c10::toString(type), " cannot be communicated"));
  }
}

at::ScalarType ToScalarType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kUInt8:
      return at::kByte;
    case DType::kInt8:
      return at::kChar;
    case DType::kInt16:
      return at::kShort;
    case DType::kInt32:
      return at::kInt;
    case DType::kInt64:
      return at::kLong;
    case DType::kBool:
      return at::kBool;
    case DType::kComplex64:
      return at::kComplexFloat;
    case DType::kComplex128:
      return at::kComplexDouble;
  }
  return at::kFloat;
}

absl::StatusOr<Tensor> FlatAnywhere(const at::Tensor& tensor, const std::string& argument) {
  if (!tensor.defined()) return absl::InvalidArgumentError(absl::StrCat(argument, ": None"));
  if (tensor.layout() != at::kStrided) {
    return absl::InvalidArgumentError(
        absl::StrCat(argument, ": a sparse tensor cannot be communicated; call to_dense() first"));
  }
  if (!tensor.is_contiguous()) {
    return absl::InvalidArgumentError(absl::StrCat(argument, ": is not contiguous"));
  }
  absl::StatusOr<DType> dtype = ToDType(tensor.scalar_type());
  if (!dtype.ok())
    return absl::InvalidArgumentError(absl::StrCat(argument, ": ", dtype.status().message()));
  return Tensor{tensor.data_ptr(), static_cast<uint64_t>(tensor.numel()), *dtype};
}

absl::StatusOr<Tensor> Flat(const at::Tensor& tensor, const std::string& argument) {
  if (tensor.defined() && !tensor.device().is_cpu()) {
    return absl::InvalidArgumentError(absl::StrCat(argument, ": is on ", tensor.device().str(),
                                                   "; only CPU tensors are served here"));
  }
  return FlatAnywhere(tensor, argument);
}

at::Tensor ViewOf(void* data, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(data, sizes, at::TensorOptions().dtype(type));
}

at::Tensor EmptyShared(at::IntArrayRef sizes, at::ScalarType type) {
  size_t count = 1;
  for (int64_t size : sizes) {
    if (size < 0) {
      ThrowStatus(absl::InvalidArgumentError(absl::StrCat("shape: has the negative size ", size)));
    }
    count *= static_cast<size_t>(size);
  }
  const size_t size_bytes = count * c10::elementSize(type);
  if (size_bytes == 0 || IsForkedChild()) return at::empty(sizes, at::TensorOptions().dtype(type));
  void* block = ValueOrThrow(SharedPool().Allocate(size_bytes));
  return at::from_blob(
      block, sizes,
      [](void* pointer) {
        if (!IsForkedChild()) SharedPool().Free(pointer);
      },
      at::TensorOptions().dtype(type));
}

}  // namespace pelton::torch_bindings
