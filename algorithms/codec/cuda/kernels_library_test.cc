// libpelton_kernels.so as the runtime loads it.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "algorithms/codec/cuda/piece_kernels.h"
#include "core/base/check.h"
#include "core/memory/cuda/shared_library.h"
#include "core/memory/dtype.h"
#include "gtest/gtest.h"

namespace pelton::codec {
namespace {

// The function `name` of it; the pointer is null and gives the type alone.
template <typename Function>
Function* Find(const char* name, Function*) {
  static const auto library =
      SharedLibrary::Find({"algorithms/codec/cuda/libpelton_kernels.so", {}, ""});
  PELTON_CHECK(library.ok()) << library.status();
  return reinterpret_cast<Function*>(library->Symbol(name));
}
#define FIND(name) Find(#name, static_cast<decltype(&name)>(nullptr))

TEST(KernelsLibraryTest, IsOfTheVersionOfTheHeader) {
  EXPECT_EQ(FIND(pelton_kernels_version)(), PELTON_KERNELS_VERSION);
}

TEST(KernelsLibraryTest, FailsOnlyWhereThereIsNoGpu) {
  alignas(32) std::byte host[512] = {};
  void* memory = nullptr;
  const bool has_gpu = cudaMalloc(&memory, sizeof host) == cudaSuccess;
  auto* const at = has_gpu ? static_cast<std::byte*>(memory) : host;
  const PeltonMessages messages = {at, 64, 2};
  const auto dtype = static_cast<int32_t>(DType::kBFloat16);
  const int results[] = {
      FIND(pelton_encode_pieces)(at, 1, dtype, at + 256, nullptr),
      FIND(pelton_decode_pieces)(at, 1, dtype, at + 256, nullptr),
      FIND(pelton_merge_pieces)(&messages, 1, dtype, 2, at + 256, nullptr),
  };
  for (const int result : results) EXPECT_EQ(result == cudaSuccess, has_gpu) << result;
  EXPECT_EQ(cudaDeviceSynchronize() == cudaSuccess, has_gpu);
  cudaFree(memory);
}

TEST(KernelsLibraryTest, NeedsNoGpuToRefuseATypeOrToDoNothing) {
  alignas(32) std::byte memory[64] = {};
  const auto encode = FIND(pelton_encode_pieces);
  EXPECT_EQ(encode(memory, 1, static_cast<int32_t>(DType::kInt64), memory + 32, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(encode(memory, 0, static_cast<int32_t>(DType::kFloat32), memory + 32, nullptr),
            cudaSuccess);
}

}  // namespace
}  // namespace pelton::codec
