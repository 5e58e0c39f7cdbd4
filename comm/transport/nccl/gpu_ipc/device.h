// What trainer and daemon alike do on the device.
#ifndef PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_DEVICE_H_
#define PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_DEVICE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/reduction/cuda/mean_library.h"
#include "comm/transport/nccl/gpu_ipc/experiment.h"
#include "comm/transport/nccl/native_communicator.h"
#include "comm/transport/nccl/nccl_library.h"
#include "core/memory/cuda/cuda_runtime.h"

namespace pelton::cuda {

// What CUDA's runtime has for memory and events of another process, looked up as the rest of it.

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

namespace pelton::gpu_ipc {

// One process's end of the first GPU. Threads: one. Owns: NCCL's communicator. Memory, streams and
// events are taken back by the process's end alone: what waits for a dead process on the device
// would hold up their release for ever.
class Device {
 public:
  // Errors: NotFound: there is no GPU, or no library to use it with; Unimplemented: it lacks a
  // function.
  static absl::StatusOr<std::unique_ptr<Device>> Open();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // "NCCL 2.28.9 (/path), CUDA runtime 13000 (/path)".
  std::string Describe() const;
  const cuda::CudaRuntime& runtime() const { return *runtime_; }
  const cuda::CudaTable& calls() const { return runtime_->calls(); }
  const cuda::IpcTable& ipc() const { return ipc_; }
  const nccl::NcclLibrary& library() const { return *library_; }
  absl::Status ToStatus(int result, absl::string_view call) const {
    return runtime_->ToStatus(result, call);
  }

  absl::StatusOr<cuda::StreamHandle> NewStream();
  absl::StatusOr<cuda::EventHandle> NewEvent(bool is_shared);
  // [count] floats that are all `value`.
  absl::StatusOr<float*> NewFloats(uint64_t count, float value);
  // In the device's memory.
  absl::StatusOr<const double*> NewFactors(const std::vector<double>& factors);
  absl::StatusOr<uint64_t> FreeBytes() const;

  // Meets the others that have `id`. Blocks: until `deadline`.
  absl::Status Connect(const std::string& id, int rank, int ranks, absl::Time deadline);

  // target = factors[0] * own + factors[1] * theirs, or without the second term where that is null.
  absl::Status Combine(const float* own, const float* theirs, const double* factors, float* target,
                       uint64_t count, cuda::StreamHandle stream);
  // The work of a bucket: the sum over ranks, then `passes` times half of it. Blocks: until NCCL
  // has put its part on the stream, or `deadline`.
  absl::Status Work(float* bucket, const Experiment& experiment, cuda::StreamHandle stream,
                    absl::Time deadline);

  // Waits for what was recorded on the device. `check` is asked now and then and ends the wait with
  // its error. Errors: also DeadlineExceeded: names `what`.
  absl::Status Await(cuda::EventHandle event, absl::string_view what, absl::Time deadline,
                     absl::FunctionRef<absl::Status()> check);

 private:
  Device() = default;

  std::unique_ptr<const cuda::CudaRuntime> runtime_;
  cuda::IpcTable ipc_{};
  MeanKernel kernel_ = nullptr;
  std::unique_ptr<const nccl::NcclLibrary> library_;
  std::unique_ptr<nccl::NativeCommunicator> communicator_;
  const double* half_ = nullptr;
};

// NCCL's ids as text for a command line, and back. Errors: InvalidArgument: it is none.
std::string IdToText(const nccl::UniqueId& id);
absl::StatusOr<nccl::UniqueId> IdOf(const std::string& text);

}  // namespace pelton::gpu_ipc

#endif  // PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_DEVICE_H_
