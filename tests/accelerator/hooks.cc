#include "tests/accelerator/hooks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/accelerator/memory.h"
#include "tests/accelerator/runtime.h"
#include "tests/accelerator/streams.h"

namespace pelton::accelerator {
namespace {

// Numbers are drawn on the CPU, so the generators are the CPU's.
// Threads: any. Owns: nothing.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return DeviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DeviceCount(); }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    Check(Runtime::Get().set_device(device), "cudaSetDevice");
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(CurrentDevice());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = getCurrentDevice();
    if (device >= 0) setCurrentDevice(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  at::Device getDeviceFromPtr(void*) const override {
    return Resolve(at::Device(at::DeviceType::PrivateUse1));
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size_bytes) const override {
    SynchronizeCurrent(storage.device());
    c10::DataPtr memory = Memory().allocate(size_bytes);
    if (storage.nbytes() > 0 && size_bytes > 0) {
      std::memcpy(memory.get(), storage.data(), std::min(storage.nbytes(), size_bytes));
    }
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(size_bytes);
  }
};

}  // namespace

void RegisterHooks() {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &Memory());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

}  // namespace pelton::accelerator
