// What CUDA's runtime has for memory and events of another process, looked up as the rest of it.
#ifndef PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_IPC_CALLS_H_
#define PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_IPC_CALLS_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "core/memory/cuda/cuda_runtime.h"

namespace pelton::cuda {

// The bytes of cudaIpcMemHandle_t and of cudaIpcEventHandle_t. Threads: a value. Owns: nothing.
struct MemoryHandle {
  char bytes[64];
};
struct SharedEventHandle {
  char bytes[64];
};

inline constexpr unsigned kEventInterprocess = 4;
inline constexpr unsigned kIpcLazyPeerAccess = 1;

// Threads: any. Owns: nothing.
struct IpcTable {
  int (*get_memory_handle)(MemoryHandle* handle, void* memory);
  int (*open_memory_handle)(void** memory, MemoryHandle handle, unsigned flags);
  int (*close_memory_handle)(void* memory);
  int (*get_event_handle)(SharedEventHandle* handle, EventHandle event);
  int (*open_event_handle)(EventHandle* event, SharedEventHandle handle);
  int (*memory_info)(size_t* free_bytes, size_t* total_bytes);
};

// In the library of `runtime`. Errors: Unimplemented: names the function that it lacks.
absl::StatusOr<IpcTable> FindIpcCalls(const CudaRuntime& runtime);

}  // namespace pelton::cuda

#endif  // PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_IPC_CALLS_H_
