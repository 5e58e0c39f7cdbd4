#include "torch_bindings/csrc/named_tensors.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "torch_bindings/csrc/devices.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {
namespace {

uint64_t ColumnsOf(const at::Tensor& tensor) {
  if (tensor.dim() < 2 || tensor.numel() == 0) return 0;
  return static_cast<uint64_t>(tensor.numel() / tensor.size(0));
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
                     .columns = ColumnsOf(tensor)});
  }
  return specs;
}

}  // namespace pelton::torch_bindings
