#include "algorithms/codec/cuda/min_max_uint8.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <random>
#include <vector>

#include "algorithms/codec/codec.h"
#include "algorithms/codec/reference.h"
#include "algorithms/codec/test_tensors.h"
#include "gtest/gtest.h"

namespace pelton::codec {
namespace {

using Bytes = std::vector<std::byte>;

// Device memory. Threads: one. Owns: it.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) { EXPECT_EQ(cudaMalloc(&data_, bytes + 64), cudaSuccess); }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  std::byte* at(size_t offset) { return static_cast<std::byte*>(data_) + offset; }

 private:
  void* data_ = nullptr;
};

// On the device, encoded and decoded: the bytes and the elements of the CPU.
void ExpectLikeReference(const std::vector<float>& floats, DType dtype, size_t offset) {
  const uint64_t count = floats.size();
  const Bytes source = ElementsOfFloats(floats, dtype);
  const Bytes want = *ReferenceEncode("min_max_uint8", {}, source.data(), count, dtype);
  const Bytes want_back = *ReferenceDecode("min_max_uint8", {}, want, count, dtype);
  DeviceBytes tensor(source.size());
  DeviceBytes encoded(want.size());
  DeviceBytes scratch(kMinMaxScratchBytes);
  const GpuChunk chunk = {count, dtype, nullptr};
  cudaMemcpy(tensor.at(offset), source.data(), source.size(), cudaMemcpyHostToDevice);
  ASSERT_EQ(EncodeMinMaxOnGpu(tensor.at(offset), chunk, encoded.at(0), scratch.at(0)), 0);
  Bytes got(want.size());
  cudaMemcpy(got.data(), encoded.at(0), got.size(), cudaMemcpyDeviceToHost);
  EXPECT_TRUE(got == want) << count << " of " << dtype;
  ASSERT_EQ(DecodeMinMaxOnGpu(encoded.at(0), chunk, tensor.at(offset)), 0);
  Bytes back(source.size());
  cudaMemcpy(back.data(), tensor.at(offset), back.size(), cudaMemcpyDeviceToHost);
  const std::vector<float> a = FloatsOfElements(back.data(), count, dtype);
  const std::vector<float> b = FloatsOfElements(want_back.data(), count, dtype);
  for (uint64_t i = 0; i < count; ++i) {
    EXPECT_TRUE(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) << a[i] << " " << b[i];
  }
}

TEST(GpuMinMaxUInt8Test, MakesTheBytesOfTheCpuOrSaysThatThereIsNoGpu) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::cout << "no GPU: only the failure is tested" << std::endl;
    std::byte nothing[64] = {};
    const GpuChunk chunk = {1, DType::kFloat32, nullptr};
    EXPECT_NE(EncodeMinMaxOnGpu(nothing, chunk, nothing, nothing), 0);
    EXPECT_NE(DecodeMinMaxOnGpu(nothing, chunk, nothing), 0);
    return;
  }
  const uint64_t seed = 20261121;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const uint64_t count : {0, 1, 3, 31, 32, 33, 1000, 4097, 300007}) {
      for (const TestTensor& tensor : TestTensors(count, random)) {
        SCOPED_TRACE(tensor.kind);
        ExpectLikeReference(tensor.elements, dtype, random() % 2 * SizeOf(dtype));
      }
    }
  }
}

TEST(GpuMinMaxUInt8Test, RefusesIntegers) {
  std::byte nothing[64] = {};
  const GpuChunk chunk = {1, DType::kInt32, nullptr};
  EXPECT_EQ(EncodeMinMaxOnGpu(nothing, chunk, nothing, nothing), cudaErrorInvalidValue);
  EXPECT_EQ(DecodeMinMaxOnGpu(nothing, chunk, nothing), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace pelton::codec
