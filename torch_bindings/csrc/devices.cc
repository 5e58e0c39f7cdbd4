#include "torch_bindings/csrc/devices.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

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

}  // namespace pelton::torch_bindings
