// What PyTorch asks of a device that it does not know itself.
#ifndef PELTON_TESTS_ACCELERATOR_HOOKS_H_
#define PELTON_TESTS_ACCELERATOR_HOOKS_H_

namespace pelton::accelerator {

// Makes the device known to autograd and to torch.accelerator, and its memory to storages. Once.
void RegisterHooks();

}  // namespace pelton::accelerator

#endif  // PELTON_TESTS_ACCELERATOR_HOOKS_H_
