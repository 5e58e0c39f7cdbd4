// Memory of the device.
#ifndef PELTON_TESTS_ACCELERATOR_MEMORY_H_
#define PELTON_TESTS_ACCELERATOR_MEMORY_H_

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

namespace pelton::accelerator {

// Gives memory of the current device, full of NaNs: what is read before it is written shows.
// Memory is released in the order of the stream on which it was allocated, like CUDA's.
c10::Allocator& Memory();

// Releases the memory only after what is on `stream` now; memory of others is left alone.
void RecordStream(const c10::DataPtr& memory, c10::Stream stream);

}  // namespace pelton::accelerator

#endif  // PELTON_TESTS_ACCELERATOR_MEMORY_H_
