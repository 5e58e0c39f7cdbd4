// CUDA's runtime as a table of functions, found when a program asks for it: nothing here needs the
// toolkit's headers, and a machine without a GPU runs the same binary.
#ifndef PELTON_CORE_MEMORY_CUDA_CUDA_RUNTIME_H_
#define PELTON_CORE_MEMORY_CUDA_CUDA_RUNTIME_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/memory/device_queue.h"

// The runtime's own names of what its handles point to.
struct CUstream_st;
struct CUevent_st;

namespace pelton::cuda {

using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;

// Values of the runtime's enumerations and flags that are used here.
inline constexpr int kSuccess = 0;
inline constexpr int kErrorMemoryAllocation = 2;
inline constexpr int kErrorNotReady = 600;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kMemcpyDefault = 4;
inline constexpr int kCaptureStatusNone = 0;

// Threads: any. Owns: nothing.
struct CudaTable {
  int (*get_device_count)(int* count);
  int (*get_device)(int* device);
  int (*set_device)(int device);
  int (*runtime_get_version)(int* version);
  const char* (*get_error_string)(int error);
  int (*stream_create_with_flags)(StreamHandle* stream, unsigned flags);
  int (*stream_destroy)(StreamHandle stream);
  int (*stream_synchronize)(StreamHandle stream);
  int (*stream_is_capturing)(StreamHandle stream, int* status);
  int (*stream_wait_event)(StreamHandle stream, EventHandle event, unsigned flags);
  int (*event_create_with_flags)(EventHandle* event, unsigned flags);
  int (*event_destroy)(EventHandle event);
  int (*event_record)(EventHandle event, StreamHandle stream);
  int (*event_query)(EventHandle event);
  int (*allocate)(void** memory, size_t size_bytes);
  int (*release)(void* memory);
  int (*memcpy_async)(void* target, const void* source, size_t size_bytes, int kind,
                      StreamHandle stream);
  int (*memset_async)(void* target, int value, size_t size_bytes, StreamHandle stream);
  // The driver's; null where it has none of that name.
  int (*primary_context_state)(int device, unsigned* flags, int* is_active);
};

// The runtime library of this process. Threads: immutable once made; any. Owns: nothing.
class CudaRuntime {
 public:
  // `path` as SharedLibrary's; else libcudart.so.13, .12, or PELTON_CUDART_LIBRARY. Errors:
  // NotFound: no library; Unimplemented: names the function that it lacks.
  static absl::StatusOr<std::unique_ptr<const CudaRuntime>> Load(const std::string& path = "");

  const CudaTable& calls() const { return table_; }
  // GPUs that this process may use; 0 also where the driver is missing. What decides whether GPUs
  // are used at all: the libraries load without one.
  int device_count() const;
  // Why it is 0: the runtime's own words.
  std::string WhyNoDevice() const;
  // Whether this process has used `device`; true also where the driver does not say.
  bool HasContext(int device) const;
  // As the runtime counts: 13000 for 13.0.
  int version() const;
  const std::string& path() const { return path_; }

  // OK for kSuccess. Errors: ResourceExhausted: no memory; else Internal; both quote the runtime.
  absl::Status ToStatus(int result, absl::string_view call) const;

 private:
  CudaRuntime(const CudaTable& table, std::string path) : table_(table), path_(std::move(path)) {}

  CudaTable table_;
  std::string path_;
};

// Makes `device` the current one of this thread for a scope. The former one comes back unless this
// process has not used it: since CUDA 12 naming a device makes a context there, which takes some
// hundred MB of its memory, and a thread that never named one stands at device 0. All ranks of a
// host would make one there. So code of ours that needs a device takes a scope, whatever is
// current, as PyTorch's does.
// Threads: the one that made it. Owns: nothing.
class DeviceScope {
 public:
  DeviceScope(const CudaRuntime& runtime, int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const CudaRuntime& runtime_;
  int before_ = 0;
  bool has_changed_ = false;
};

}  // namespace pelton::cuda

namespace pelton {

// Names a stream of the CUDA runtime; null is the device's default stream.
// Threads: as Stream. Owns: nothing: the runtime's stream outlives the completion of what was
// launched on it.
class CudaStream final : public Stream {
 public:
  CudaStream(cuda::StreamHandle handle, int device_index)
      : handle_(handle), device_index_(device_index) {}

  DeviceKind device() const override { return DeviceKind::kCuda; }
  cuda::StreamHandle handle() const { return handle_; }
  int device_index() const { return device_index_; }

 private:
  cuda::StreamHandle handle_;
  int device_index_;
};

}  // namespace pelton

#endif  // PELTON_CORE_MEMORY_CUDA_CUDA_RUNTIME_H_
