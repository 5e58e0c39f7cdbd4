#include "comm/transport/nccl/gpu_ipc/ipc_calls.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/memory/cuda/shared_library.h"

namespace pelton::cuda {
namespace {

template <typename Function>
absl::Status Bind(const SharedLibrary& library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(library.Symbol(name));
  if (function != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("CUDA runtime ", library.path(), " has no ", name));
}

}  // namespace

absl::StatusOr<IpcTable> FindIpcCalls(const CudaRuntime& runtime) {
  ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Find({runtime.path(), {}, ""}));
  IpcTable table;
  RETURN_IF_ERROR(Bind(library, "cudaIpcGetMemHandle", table.get_memory_handle));
  RETURN_IF_ERROR(Bind(library, "cudaIpcOpenMemHandle", table.open_memory_handle));
  RETURN_IF_ERROR(Bind(library, "cudaIpcCloseMemHandle", table.close_memory_handle));
  RETURN_IF_ERROR(Bind(library, "cudaIpcGetEventHandle", table.get_event_handle));
  RETURN_IF_ERROR(Bind(library, "cudaIpcOpenEventHandle", table.open_event_handle));
  RETURN_IF_ERROR(Bind(library, "cudaMemGetInfo", table.memory_info));
  return table;
}

}  // namespace pelton::cuda
