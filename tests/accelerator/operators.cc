// The device's operators: memory and views are its own, all else is computed on the CPU.
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

#include "tests/accelerator/copy.h"
#include "tests/accelerator/memory.h"
#include "tests/accelerator/streams.h"

namespace pelton::accelerator {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device DeviceOr(optional<c10::Device> device) {
  return Resolve(device.value_or(c10::Device(c10::DeviceType::PrivateUse1)));
}

Tensor Empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>,
             optional<c10::Device> device, optional<bool>, optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(DeviceOr(device));
  return at::detail::empty_generic(size, &Memory(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor EmptyStrided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype,
                    optional<at::Layout>, optional<c10::Device> device, optional<bool>) {
  const c10::DeviceGuard guard(DeviceOr(device));
  return at::detail::empty_strided_generic(size, stride, &Memory(), kKeys,
                                           c10::dtype_or_default(dtype));
}

Tensor CopyFrom(const Tensor& source, const Tensor& target, bool) {
  if (source.sizes() == target.sizes()) {
    Copy(source, target);
  } else {
    Copy(source.expand_as(target), target);
  }
  return target;
}

Tensor CopyFromAndResize(const Tensor& source, const Tensor& target) {
  if (source.sizes() != target.sizes()) target.resize_(source.sizes());
  Copy(source, target);
  return target;
}

at::Scalar ValueOf(const Tensor& tensor) {
  SynchronizeCurrent(tensor.device());
  return at::native::_local_scalar_dense_cpu(tensor);
}

// Growing a storage copies it on the host.
const Tensor& Resize(const Tensor& tensor, IntArrayRef size, optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(tensor.device());
  SynchronizeCurrent(tensor.device());
  return at::native::resize_(tensor, size, format);
}

Tensor& SetToStorage(Tensor& tensor, at::Storage source, int64_t offset, IntArrayRef size,
                     IntArrayRef stride) {
  return at::native::set_storage_cpu_(tensor, std::move(source), offset, size, stride);
}

Tensor& SetToNothing(Tensor& tensor) {
  at::Storage empty(c10::Storage::use_byte_size_t(), 0, Memory().allocate(0), &Memory(), true);
  return at::native::set_storage_cpu_(tensor, std::move(empty), 0, {0}, {});
}

void RecordTensor(Tensor& tensor, at::Stream stream) {
  RecordStream(tensor.storage().data_ptr(), stream);
}

optional<Tensor> OnCpu(const optional<Tensor>& tensor) {
  return tensor.has_value() && tensor->defined() ? optional<Tensor>(tensor->cpu()) : std::nullopt;
}

// Its schema does not say that it changes the running statistics, so the fallback would drop that.
std::tuple<Tensor, Tensor, Tensor> BatchNorm(const Tensor& input, const optional<Tensor>& weight,
                                             const optional<Tensor>& bias,
                                             const optional<Tensor>& running_mean,
                                             const optional<Tensor>& running_variance,
                                             bool training, double momentum, double epsilon) {
  const optional<Tensor> mean = OnCpu(running_mean);
  const optional<Tensor> variance = OnCpu(running_variance);
  const auto [output, saved_mean, saved_variance] = at::native_batch_norm(
      input.cpu(), OnCpu(weight), OnCpu(bias), mean, variance, training, momentum, epsilon);
  if (training && mean.has_value()) running_mean->copy_(*mean);
  if (training && variance.has_value()) running_variance->copy_(*variance);
  const c10::Device device = input.device();
  return {output.to(device), saved_mean.to(device), saved_variance.to(device)};
}

// PyTorch would compute a convolution by operators that need the device, not by the CPU's own.
Tensor Convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  return at::convolution(input.cpu(), weight.cpu(), OnCpu(bias), stride, padding, dilation,
                         transposed, output_padding, groups)
      .to(input.device());
}

std::tuple<Tensor, Tensor, Tensor> ConvolutionBackward(const Tensor& gradient, const Tensor& input,
                                                       const Tensor& weight, IntArrayRef stride,
                                                       IntArrayRef padding, IntArrayRef dilation,
                                                       bool transposed, IntArrayRef output_padding,
                                                       int64_t groups, std::array<bool, 3> wanted) {
  const std::array<int64_t, 1> bias_size = {gradient.size(1)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      gradient.cpu(), input.cpu(), weight.cpu(), IntArrayRef(bias_size), stride, padding, dilation,
      transposed, output_padding, groups, wanted);
  const auto back = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor.to(input.device()) : tensor;
  };
  return {back(of_input), back(of_weight), back(of_bias)};
}

// A view that was computed on a copy would be no view: that is an error.
void ComputeOnCpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  constexpr bool kErrorOnViews = true;
  at::native::cpu_fallback(operation, stack, kErrorOnViews);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(Empty));
  library.impl("empty_strided", TORCH_FN(EmptyStrided));
  library.impl("_copy_from", TORCH_FN(CopyFrom));
  library.impl("_copy_from_and_resize", TORCH_FN(CopyFromAndResize));
  library.impl("_local_scalar_dense", TORCH_FN(ValueOf));
  library.impl("resize_", TORCH_FN(Resize));
  library.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(SetToStorage));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("set_", TORCH_FN(SetToNothing));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("record_stream", TORCH_FN(RecordTensor));
  library.impl("native_batch_norm", TORCH_FN(BatchNorm));
  library.impl("convolution_overrideable", TORCH_FN(Convolution));
  library.impl("convolution_backward_overrideable", TORCH_FN(ConvolutionBackward));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&ComputeOnCpu>());
}

}  // namespace
}  // namespace pelton::accelerator
