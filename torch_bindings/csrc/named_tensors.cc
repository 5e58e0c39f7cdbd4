#include "torch_bindings/csrc/named_tensors.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "torch_bindings/csrc/devices.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {
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
