// The module _accelerator: importing it gives PyTorch its PrivateUse1 device.
#include <torch/extension.h>

#include "tests/accelerator/hooks.h"
#include "tests/accelerator/runtime.h"
#include "tests/accelerator/streams.h"

namespace pelton::accelerator {
namespace {

namespace py = pybind11;

c10::Device At(int index) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

// As anybody would find it who does not know this module. Units: an address; 0: the default stream.
uintptr_t CurrentHandle(int device_index) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::PrivateUse1);
  return reinterpret_cast<uintptr_t>(guard.getStream(At(device_index)).native_handle());
}

// A tensor over memory of the device that somebody else owns.
torch::Tensor FromAddress(uintptr_t address, std::vector<int64_t> size, int device_index) {
  const auto options = torch::TensorOptions().dtype(torch::kFloat32).device(At(device_index));
  return torch::from_blob(reinterpret_cast<void*>(address), size, options);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  Runtime::Get();  // whose errors are the import's
  RegisterHooks();
  module.def("current_stream_handle", &CurrentHandle, py::arg("device_index"));
  module.def("device_count", [] { return static_cast<int>(DeviceCount()); });
  module.def("from_address", &FromAddress, py::arg("address"), py::arg("size"),
             py::arg("device_index"));
}

}  // namespace pelton::accelerator
