// The CUDA runtime's C interface over streams.h; the device's memory is the host's.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "comm/transport/nccl/stand_in/controls.h"
#include "comm/transport/nccl/stand_in/ipc.h"
#include "comm/transport/nccl/stand_in/streams.h"

using pelton::stand_in::Controls;
using pelton::stand_in::StreamOf;

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kMemoryAllocation = 2;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kNotReady = 600;
constexpr int kNotSupported = 801;
constexpr unsigned kEventInterprocess = 4;
// Of every device, whatever is allocated.
constexpr size_t kTotalBytes = size_t{16} << 30;
constexpr size_t kFreeBytes = size_t{8} << 30;

thread_local int current_device = 0;

// Of which devices there are contexts. Threads: any. Owns: nothing.
std::array<std::atomic<bool>, pelton::stand_in::kDefaultDeviceCount> has_context = {};

template <typename T>
int Make(const char* call, T** made) {
  if (const int fault = Controls::Get().FaultOf(call)) return fault;
  *made = new T;
  Controls::Get().Count(1);
  return kSuccess;
}

template <typename T>
int Destroy(T* made) {
  delete made;
  Controls::Get().Count(-1);
  return kSuccess;
}

}  // namespace

extern "C" {

int cudaGetDeviceCount(int* count) {
  if (const int fault = Controls::Get().FaultOf("cudaGetDeviceCount")) return fault;
  *count = Controls::Get().device_count();
  return *count > 0 ? kSuccess : kNoDevice;
}

int cudaGetDevice(int* device) {
  if (const int fault = Controls::Get().FaultOf("cudaGetDevice")) return fault;
  *device = current_device;
  return kSuccess;
}

int cudaSetDevice(int device) {
  const int count = std::min(Controls::Get().device_count(), pelton::stand_in::kDefaultDeviceCount);
  if (device < 0 || device >= count) return kInvalidDevice;
  current_device = device;
  has_context[static_cast<size_t>(device)] = true;  // as since CUDA 12
  return kSuccess;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = has_context[static_cast<size_t>(device)] ? 1 : 0;
  return kSuccess;
}

int cudaDeviceSynchronize() {
  pelton::stand_in::SynchronizeAll();
  return kSuccess;
}

int cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

const char* cudaGetErrorString(int error) {
  switch (error) {
    case kMemoryAllocation:
      return "out of memory";
    case kNoDevice:
      return "no CUDA-capable device is detected";
    case kInvalidContext:
      return "invalid device context";
    case kInvalidHandle:
      return "invalid resource handle";
    case kNotSupported:
      return "operation not supported: set PELTON_STAND_IN_IPC=1";
    default:
      return "an error of the stand-in";
  }
}

int cudaStreamCreateWithFlags(CUstream_st** stream, unsigned) {
  return Make("cudaStreamCreateWithFlags", stream);
}
int cudaStreamDestroy(CUstream_st* stream) { return Destroy(stream); }

int cudaStreamSynchronize(CUstream_st* stream) {
  StreamOf(stream).Synchronize();
  return kSuccess;
}

// Told to fail, it says that the stream is being captured.
int cudaStreamIsCapturing(CUstream_st*, int* status) {
  *status = Controls::Get().FaultOf("cudaStreamIsCapturing");
  return kSuccess;
}

int cudaStreamQuery(CUstream_st* stream) {
  return StreamOf(stream).work()->all_reached() ? kSuccess : kNotReady;
}

int cudaStreamWaitEvent(CUstream_st* stream, CUevent_st* event, unsigned) {
  if (const int fault = Controls::Get().FaultOf("cudaStreamWaitEvent")) return fault;
  StreamOf(stream).Push(
      [marks = event->marks, mark = event->marks->last()] { marks->WaitFor(mark); });
  return kSuccess;
}

int cudaLaunchHostFunc(CUstream_st* stream, void (*function)(void*), void* argument) {
  if (const int fault = Controls::Get().FaultOf("cudaLaunchHostFunc")) return fault;
  StreamOf(stream).Push([=] { function(argument); });
  return kSuccess;
}

int cudaEventCreateWithFlags(CUevent_st** event, unsigned flags) {
  const bool is_shared = (flags & kEventInterprocess) != 0;
  if (is_shared && !pelton::stand_in::HasIpc()) return kNotSupported;
  if (const int fault = Make("cudaEventCreateWithFlags", event)) return fault;
  return !is_shared || pelton::stand_in::ShareMarks(**event) ? kSuccess : kMemoryAllocation;
}
int cudaEventDestroy(CUevent_st* event) { return Destroy(event); }

int cudaEventRecord(CUevent_st* event, CUstream_st* stream) {
  if (const int fault = Controls::Get().FaultOf("cudaEventRecord")) return fault;
  StreamOf(stream).Push(
      [marks = event->marks, mark = event->marks->Mark()] { marks->Reach(mark); });
  return kSuccess;
}

int cudaEventQuery(CUevent_st* event) {
  if (const int fault = Controls::Get().FaultOf("cudaEventQuery")) return fault;
  return event->marks->all_reached() ? kSuccess : kNotReady;
}

int cudaEventSynchronize(CUevent_st* event) {
  event->marks->WaitFor(event->marks->last());
  return kSuccess;
}

int cudaMalloc(void** memory, size_t size_bytes) {
  if (const int fault = Controls::Get().FaultOf("cudaMalloc")) return fault;
  *memory = pelton::stand_in::HasIpc() ? pelton::stand_in::AllocateShared(size_bytes)
                                       : std::calloc(1, size_bytes);
  if (*memory == nullptr) return kMemoryAllocation;
  Controls::Get().Count(1);
  return kSuccess;
}

int cudaFree(void* memory) {
  if (!pelton::stand_in::ReleaseShared(memory)) std::free(memory);
  Controls::Get().Count(-1);
  return kSuccess;
}

int cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (const int fault = Controls::Get().FaultOf("cudaMemGetInfo")) return fault;
  *free_bytes = kFreeBytes;
  *total_bytes = kTotalBytes;
  return kSuccess;
}

// The device's memory is the host's in any case.
int cudaHostRegister(void* memory, size_t size_bytes, unsigned) {
  if (const int fault = Controls::Get().FaultOf("cudaHostRegister")) return fault;
  if (memory == nullptr || size_bytes == 0) return kInvalidValue;
  Controls::Get().Count(1);
  return kSuccess;
}

int cudaHostUnregister(void*) {
  Controls::Get().Count(-1);
  return kSuccess;
}

int cudaHostGetDevicePointer(void** there, void* memory, unsigned) {
  *there = memory;
  return kSuccess;
}

int cudaMemcpyAsync(void* target, const void* source, size_t size_bytes, int, CUstream_st* stream) {
  if (const int fault = Controls::Get().FaultOf("cudaMemcpyAsync")) return fault;
  StreamOf(stream).Push([=] { std::memcpy(target, source, size_bytes); });
  return kSuccess;
}

int cudaMemsetAsync(void* target, int value, size_t size_bytes, CUstream_st* stream) {
  if (const int fault = Controls::Get().FaultOf("cudaMemsetAsync")) return fault;
  StreamOf(stream).Push([=] { std::memset(target, value, size_bytes); });
  return kSuccess;
}
}
