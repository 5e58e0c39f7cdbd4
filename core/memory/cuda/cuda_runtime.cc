#include "core/memory/cuda/cuda_runtime.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/memory/cuda/shared_library.h"

namespace pelton::cuda {
namespace {

constexpr const char* kContextState = "cuDevicePrimaryCtxGetState";

absl::StatusOr<CudaTable> Fill(const SharedLibrary& library) {
  CudaTable table{};
  RETURN_IF_ERROR(library.Bind("cudaGetDeviceCount", table.get_device_count));
  RETURN_IF_ERROR(library.Bind("cudaGetDevice", table.get_device));
  RETURN_IF_ERROR(library.Bind("cudaSetDevice", table.set_device));
  RETURN_IF_ERROR(library.Bind("cudaRuntimeGetVersion", table.runtime_get_version));
  RETURN_IF_ERROR(library.Bind("cudaGetErrorString", table.get_error_string));
  RETURN_IF_ERROR(library.Bind("cudaStreamCreateWithFlags", table.stream_create_with_flags));
  RETURN_IF_ERROR(library.Bind("cudaStreamDestroy", table.stream_destroy));
  RETURN_IF_ERROR(library.Bind("cudaStreamSynchronize", table.stream_synchronize));
  RETURN_IF_ERROR(library.Bind("cudaStreamIsCapturing", table.stream_is_capturing));
  RETURN_IF_ERROR(library.Bind("cudaStreamWaitEvent", table.stream_wait_event));
  RETURN_IF_ERROR(library.Bind("cudaEventCreateWithFlags", table.event_create_with_flags));
  RETURN_IF_ERROR(library.Bind("cudaEventDestroy", table.event_destroy));
  RETURN_IF_ERROR(library.Bind("cudaEventRecord", table.event_record));
  RETURN_IF_ERROR(library.Bind("cudaEventQuery", table.event_query));
  RETURN_IF_ERROR(library.Bind("cudaMalloc", table.allocate));
  RETURN_IF_ERROR(library.Bind("cudaFree", table.release));
  RETURN_IF_ERROR(library.Bind("cudaMemcpyAsync", table.memcpy_async));
  RETURN_IF_ERROR(library.Bind("cudaMemsetAsync", table.memset_async));
  // A library that stands in for the runtime may bring the driver's function.
  if (library.Bind(kContextState, table.primary_context_state).ok()) return table;
  const absl::StatusOr<SharedLibrary> driver = SharedLibrary::Find({"", {"libcuda.so.1"}, ""});
  if (driver.ok()) driver->Bind(kContextState, table.primary_context_state).IgnoreError();
  return table;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const CudaRuntime>> CudaRuntime::Load(const std::string& path) {
  const LibrarySearch search{
      path, {"libcudart.so.13", "libcudart.so.12", "libcudart.so"}, "PELTON_CUDART_LIBRARY"};
  absl::StatusOr<SharedLibrary> library = SharedLibrary::Find(search);
  if (!library.ok()) return Annotate(library.status(), "CUDA runtime");
  ASSIGN_OR_RETURN(const CudaTable table, Fill(*library));
  return std::unique_ptr<const CudaRuntime>(new CudaRuntime(table, library->path()));
}

int CudaRuntime::device_count() const {
  int count = 0;
  return table_.get_device_count(&count) == kSuccess ? count : 0;
}

std::string CudaRuntime::WhyNoDevice() const {
  int count = 0;
  const int result = table_.get_device_count(&count);
  if (result == kSuccess) return absl::StrCat("cudaGetDeviceCount says ", count);
  return absl::StrCat("cudaGetDeviceCount: ", table_.get_error_string(result));
}

bool CudaRuntime::HasContext(int device) const {
  if (table_.primary_context_state == nullptr) return true;
  unsigned flags = 0;
  int is_active = 0;
  const int result = table_.primary_context_state(device, &flags, &is_active);
  return result != kSuccess || is_active != 0;
}

int CudaRuntime::version() const {
  int version = 0;
  return table_.runtime_get_version(&version) == kSuccess ? version : 0;
}

absl::Status CudaRuntime::ToStatus(int result, absl::string_view call) const {
  if (result == kSuccess) return absl::OkStatus();
  const std::string text =
      absl::StrCat(call, ": ", table_.get_error_string(result), " (", result, ")");
  return result == kErrorMemoryAllocation ? absl::ResourceExhaustedError(text)
                                          : absl::InternalError(text);
}

DeviceScope::DeviceScope(const CudaRuntime& runtime, int device) : runtime_(runtime) {
  runtime.calls().get_device(&before_);
  has_changed_ = before_ != device;
  if (has_changed_) runtime.calls().set_device(device);
}

DeviceScope::~DeviceScope() {
  if (has_changed_ && runtime_.HasContext(before_)) runtime_.calls().set_device(before_);
}

}  // namespace pelton::cuda
