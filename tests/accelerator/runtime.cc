#include "tests/accelerator/runtime.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "core/memory/cuda/shared_library.h"

namespace pelton::accelerator {
namespace {

constexpr char kVariable[] = "PELTON_CUDART_LIBRARY";

template <typename Function>
void Bind(const SharedLibrary& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library.Symbol(name));
  TORCH_CHECK(function != nullptr, library.path(), " has no ", name);
}

Runtime Load() {
  const char* path = std::getenv(kVariable);
  TORCH_CHECK(path != nullptr && *path != '\0', kVariable, " is not set");
  const auto library = SharedLibrary::Find({path, {}, ""});
  TORCH_CHECK(library.ok(), library.status().ToString());
  Runtime runtime;
  Bind(*library, "cudaGetDeviceCount", runtime.get_device_count);
  Bind(*library, "cudaGetDevice", runtime.get_device);
  Bind(*library, "cudaSetDevice", runtime.set_device);
  Bind(*library, "cudaDeviceSynchronize", runtime.device_synchronize);
  Bind(*library, "cudaStreamCreateWithFlags", runtime.stream_create_with_flags);
  Bind(*library, "cudaStreamSynchronize", runtime.stream_synchronize);
  Bind(*library, "cudaStreamQuery", runtime.stream_query);
  Bind(*library, "cudaStreamWaitEvent", runtime.stream_wait_event);
  Bind(*library, "cudaLaunchHostFunc", runtime.launch_host_func);
  Bind(*library, "cudaEventCreateWithFlags", runtime.event_create_with_flags);
  Bind(*library, "cudaEventDestroy", runtime.event_destroy);
  Bind(*library, "cudaEventRecord", runtime.event_record);
  Bind(*library, "cudaEventQuery", runtime.event_query);
  Bind(*library, "cudaEventSynchronize", runtime.event_synchronize);
  Bind(*library, "cudaMalloc", runtime.allocate);
  Bind(*library, "cudaFree", runtime.release);
  return runtime;
}

}  // namespace

const Runtime& Runtime::Get() {
  static const Runtime* const runtime = new Runtime(Load());  // outlives every tensor
  return *runtime;
}

void Runtime::Push(StreamHandle stream, std::function<void()> work) const {
  auto argument = std::make_unique<std::function<void()>>(std::move(work));
  auto run = [](void* pushed) {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(pushed));
    (*owned)();
  };
  Check(launch_host_func(stream, run, argument.release()), "cudaLaunchHostFunc");
}

void Check(int result, const char* call) { TORCH_CHECK(result == 0, call, " says ", result); }

}  // namespace pelton::accelerator
