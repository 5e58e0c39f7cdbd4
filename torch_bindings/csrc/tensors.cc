#include "torch_bindings/csrc/tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/fork.h"
#include "core/base/status.h"
#include "torch_bindings/csrc/shared_allocator.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {

bool IsGpu(const at::Device& device) { return device.is_cuda() || device.is_privateuseone(); }

absl::StatusOr<Device> ToDevice(const at::Device& device, const std::string& what) {
  if (device.is_cpu()) return Device{};
  if (IsGpu(device)) return Device{DeviceKind::kCuda, device.index()};
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is on ", device.str(), "; tensors of the CPU and of GPUs are served"));
}

CudaQueue::CallersStream CurrentStreamOf(const at::Device& device) {
  return [device] {
    const c10::impl::VirtualGuardImpl guard(device.type());
    const c10::Stream stream = guard.getStream(device);
    return static_cast<cuda::StreamHandle>(stream.native_handle());
  };
}

void TrainersStream::Note() {
  const c10::impl::VirtualGuardImpl guard(device_.type());
  stream_.store(guard.getStream(device_).id(), std::memory_order_relaxed);
}

c10::Stream TrainersStream::Get() const {
  return c10::Stream(c10::Stream::UNSAFE, device_, stream_.load(std::memory_order_relaxed));
}

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

namespace {

// The copy is apart from the tensor, which therefore does not see what is written to the copy.
std::string CallWithACopy(const char* method) {
  return absl::StrCat("call this with a copy, that of ", method,
                      ", and where something is written to that, copy_() it back into the tensor");
}

}  // namespace

absl::StatusOr<Tensor> FlatAnywhere(const at::Tensor& tensor, const std::string& argument) {
  if (!tensor.defined()) return absl::InvalidArgumentError(absl::StrCat(argument, ": None"));
  if (tensor.layout() != at::kStrided) {
    return absl::InvalidArgumentError(
        absl::StrCat(argument, ": a sparse tensor cannot be communicated; call to_dense() first"));
  }
  if (!tensor.is_contiguous()) {
    return absl::InvalidArgumentError(
        absl::StrCat(argument, ": is not contiguous; ", CallWithACopy("contiguous()")));
  }
  if (tensor.is_neg() || tensor.is_conj()) {
    return absl::InvalidArgumentError(
        absl::StrCat(argument,
                     ": is a view that PyTorch negates or conjugates when it reads it, so that its "
                     "memory holds other values; ",
                     CallWithACopy("resolve_conj().resolve_neg()")));
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

namespace {

uint64_t ColumnsOf(const at::Tensor& tensor) {
  if (tensor.dim() < 2 || tensor.numel() == 0) return 0;
  return static_cast<uint64_t>(tensor.numel() / tensor.size(0));
}

// Slots lie as their tensors do, where those are dense. A dimension of one element has no say.
std::string LayoutOf(const at::Tensor& tensor) {
  if (tensor.dim() < 2 || tensor.numel() == 0) return "";
  const bool is_dense = tensor.is_non_overlapping_and_dense();
  std::vector<int64_t> strides = (is_dense ? tensor : tensor.contiguous()).strides().vec();
  for (size_t i = 0; i < strides.size(); ++i) {
    if (tensor.size(static_cast<int64_t>(i)) == 1) strides[i] = 1;
  }
  return absl::StrCat("strides [", absl::StrJoin(strides, ", "), "]");
}

}  // namespace

absl::StatusOr<std::vector<TensorSpec>> SpecsOf(const NamedTensors& tensors, BucketsAt buckets) {
  if (tensors.empty()) {
    return absl::InvalidArgumentError("parameters: none of them requires a gradient");
  }
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    ASSIGN_OR_RETURN(const Device device,
                     ToDevice(tensor.device(), absl::StrCat("parameter '", name, "'")));
    absl::StatusOr<DType> dtype = ToDType(tensor.scalar_type());
    if (!dtype.ok()) return Annotate(dtype.status(), absl::StrCat("parameter '", name, "'"));
    specs.push_back({.name = name,
                     .dtype = *dtype,
                     .count = static_cast<uint64_t>(tensor.numel()),
                     .device = buckets == BucketsAt::kTensors ? device : Device{},
                     .columns = ColumnsOf(tensor),
                     .layout = LayoutOf(tensor)});
  }
  return specs;
}

}  // namespace pelton::torch_bindings
