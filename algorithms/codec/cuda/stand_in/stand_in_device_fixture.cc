// The stand-in's kernels on the stand-in for CUDA, both from their libraries.
#include <cstdlib>

#include "algorithms/codec/cuda/piece_kernels_fixture.h"
#include "core/base/check.h"
#include "core/memory/cuda/shared_library.h"

namespace pelton::codec {
namespace {

// Among the test's runfiles.
constexpr char kKernels[] = "algorithms/codec/cuda/stand_in/libpelton_kernels_stand_in.so";
constexpr char kRuntime[] = "comm/transport/nccl/stand_in/libpelton_gpu_stand_in.so";
constexpr int kMemcpyDefault = 4;

int (*memcpy_async)(void*, const void*, size_t, int, CUstream_st*);
int (*stream_synchronize)(CUstream_st*);

SharedLibrary Load(const char* path) {
  auto library = SharedLibrary::Find({path, {}, ""});
  PELTON_CHECK(library.ok()) << library.status();
  return *std::move(library);
}

template <typename Function>
void Bind(const SharedLibrary& library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(library.Symbol(name));
  PELTON_CHECK(function != nullptr) << name;
}

int Synchronize() { return stream_synchronize(nullptr); }
int Copy(void* target, const void* source, size_t size_bytes) {
  const int result = memcpy_async(target, source, size_bytes, kMemcpyDefault, nullptr);
  return result == 0 ? Synchronize() : result;
}

PieceDevice LoadDevice() {
  setenv("PELTON_CUDART_LIBRARY", kRuntime, 1);
  PieceDevice device = {};
  const auto kernels = BindKernels(Load(kKernels));
  PELTON_CHECK(kernels.ok()) << kernels.status();
  device.kernels = *kernels;
  const SharedLibrary runtime = Load(kRuntime);
  Bind(runtime, "cudaMalloc", device.allocate);
  Bind(runtime, "cudaFree", device.release);
  Bind(runtime, "cudaMemcpyAsync", memcpy_async);
  Bind(runtime, "cudaStreamSynchronize", stream_synchronize);
  device.copy = Copy;
  device.synchronize = Synchronize;
  return device;
}

}  // namespace

const PieceDevice& DeviceUnderTest() {
  static const PieceDevice device = LoadDevice();
  return device;
}

}  // namespace pelton::codec
