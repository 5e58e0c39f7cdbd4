// Copies to, from and on the device.
#ifndef PELTON_TESTS_ACCELERATOR_COPY_H_
#define PELTON_TESTS_ACCELERATOR_COPY_H_

#include <ATen/core/Tensor.h>

namespace pelton::accelerator {

// The bytes of a tensor of the device, as a tensor of the CPU: the device's memory is the host's.
// It does not keep them alive.
at::Tensor OnHost(const at::Tensor& tensor);

// target = source. What is on the device is read after what is on its current stream, for which
// the host waits, and written in the order of that stream, for which it does not.
void Copy(const at::Tensor& source, const at::Tensor& target);

}  // namespace pelton::accelerator

#endif  // PELTON_TESTS_ACCELERATOR_COPY_H_
