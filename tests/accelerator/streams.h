// PyTorch's streams of the device and the runtime's.
#ifndef PELTON_TESTS_ACCELERATOR_STREAMS_H_
#define PELTON_TESTS_ACCELERATOR_STREAMS_H_

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "tests/accelerator/runtime.h"

namespace pelton::accelerator {

// All of these: Threads: any; what is current is each thread's own.

int CurrentDevice();
c10::DeviceIndex DeviceCount() noexcept;
// `device`, or the current one for one without an index.
c10::Device Resolve(c10::Device device);

c10::Stream DefaultStream(c10::Device device);
c10::Stream CurrentStream(c10::Device device);
// Makes it its device's current one; returns the one before.
c10::Stream ExchangeStream(c10::Stream stream);
// One of a few that are handed out in turn, as CUDA's are. They are never closed.
c10::Stream PoolStream(c10::Device device);
StreamHandle HandleOf(c10::Stream stream);

// Waits for what is on the current stream of `device`, and for no other.
void SynchronizeCurrent(c10::Device device);

}  // namespace pelton::accelerator

#endif  // PELTON_TESTS_ACCELERATOR_STREAMS_H_
