// Device memory and events of the stand-in that another process can open.
#ifndef PELTON_COMM_TRANSPORT_NCCL_STAND_IN_IPC_H_
#define PELTON_COMM_TRANSPORT_NCCL_STAND_IN_IPC_H_

#include <cstddef>
#include <cstdint>

#include "comm/transport/nccl/stand_in/streams.h"

namespace pelton::stand_in {

// Whether PELTON_STAND_IN_IPC=1 asks for it. Else device memory is the heap's, which costs less, no
// handle can be had of it, and events are the process's own.
bool HasIpc();

// Device memory that has a handle; null: there is none left.
void* AllocateShared(size_t size_bytes);
// Whether `memory` was that.
bool ReleaseShared(void* memory);

// Makes a new event one of all processes. False: there is no memory left.
bool ShareMarks(CUevent_st& event);

}  // namespace pelton::stand_in

#endif  // PELTON_COMM_TRANSPORT_NCCL_STAND_IN_IPC_H_
