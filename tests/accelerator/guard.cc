// What PyTorch asks of any device: which is current, its streams and its events.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/accelerator/memory.h"
#include "tests/accelerator/runtime.h"
#include "tests/accelerator/streams.h"

namespace pelton::accelerator {
namespace {

constexpr unsigned kDisableTiming = 2;

EventHandle EventOf(void* event) { return static_cast<EventHandle>(event); }

// Threads: any. Owns: nothing.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {type(), static_cast<c10::DeviceIndex>(CurrentDevice())};
  }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) Check(Runtime::Get().set_device(device.index()), "cudaSetDevice");
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) Runtime::Get().set_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return DeviceCount(); }

  c10::Stream getStream(c10::Device device) const override { return CurrentStream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return DefaultStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return PoolStream(device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return PoolStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return ExchangeStream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return HandleOf(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    return Runtime::Get().stream_query(HandleOf(stream)) == 0;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Check(Runtime::Get().stream_synchronize(HandleOf(stream)), "cudaStreamSynchronize");
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    Check(Runtime::Get().device_synchronize(), "cudaDeviceSynchronize");
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    RecordStream(memory, stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    const Runtime& runtime = Runtime::Get();
    if (*event == nullptr) {
      EventHandle made = nullptr;
      Check(runtime.event_create_with_flags(&made, kDisableTiming), "cudaEventCreateWithFlags");
      *event = made;
    }
    Check(runtime.event_record(EventOf(*event), HandleOf(stream)), "cudaEventRecord");
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    Check(Runtime::Get().stream_wait_event(HandleOf(stream), EventOf(event), 0),
          "cudaStreamWaitEvent");
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || Runtime::Get().event_query(EventOf(event)) == 0;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      Check(Runtime::Get().event_synchronize(EventOf(event)), "cudaEventSynchronize");
    }
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) Runtime::Get().event_destroy(EventOf(event));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace
}  // namespace pelton::accelerator
