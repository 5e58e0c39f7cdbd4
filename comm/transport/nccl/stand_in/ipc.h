// Device memory and events of the stand-in that another process can open, in memory that it maps by
// 64 bytes, as CUDA's handles are.
#ifndef PELTON_COMM_TRANSPORT_NCCL_STAND_IN_IPC_H_
#define PELTON_COMM_TRANSPORT_NCCL_STAND_IN_IPC_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/nccl/stand_in/streams.h"
#include "comm/transport/shm/mapping.h"

namespace pelton::stand_in {

// Where a memfd of another process is. Both of CUDA's handles have this size.
// Threads: a value. Owns: nothing; the memory has to be open there when it is opened here.
struct IpcHandle {
  enum Kind : uint32_t { kMemory = 0x504C5401, kEvent = 0x504C5402 };
  Kind kind;
  int32_t process;
  int32_t descriptor;
  char rest[52];
};
static_assert(sizeof(IpcHandle) == 64);

// Threads: immutable once made; the bytes are the users' to order. Owns: the mapping, and where it
// was made the memfd.
class SharedMemory {
 public:
  // Errors: ResourceExhausted.
  static absl::StatusOr<SharedMemory> Make(size_t size_bytes);
  // Errors: FailedPrecondition: it is this process's own, which CUDA refuses, too; InvalidArgument:
  // it is no handle of this kind; NotFound: the process or its memory is gone.
  static absl::StatusOr<SharedMemory> Open(const IpcHandle& handle, IpcHandle::Kind kind);

  std::byte* data() const { return mapping_->data(); }
  bool is_own() const { return descriptor_.is_open(); }
  // For other processes; of memory that was made here.
  IpcHandle HandleOf(IpcHandle::Kind kind) const;

 private:
  SharedMemory(Descriptor descriptor, shm::Mapping::Pointer mapping)
      : descriptor_(std::move(descriptor)), mapping_(std::move(mapping)) {}

  Descriptor descriptor_;  // closed where the memory was opened
  shm::Mapping::Pointer mapping_;
};

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
