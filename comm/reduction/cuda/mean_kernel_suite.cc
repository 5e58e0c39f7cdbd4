// The kernel against sums that are written out, on the GPU of this machine; where there is none,
// its failure. No Highway here, which cannot be carried.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "comm/reduction/cuda/mean_kernel.h"
#include "comm/reduction/half.h"
#include "core/memory/dtype.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
constexpr uint64_t kSeed = 20261125;

uint64_t Aligned(uint64_t size_bytes) { return (size_bytes + 255) / 256 * 256; }

bool HasGpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

// Device memory. Threads: one. Owns: it.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) { EXPECT_EQ(cudaMalloc(&data_, bytes + 64), cudaSuccess); }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  std::byte* at(size_t offset) { return static_cast<std::byte*>(data_) + offset; }
  void Put(size_t offset, const void* from, size_t bytes) {
    EXPECT_EQ(cudaMemcpy(at(offset), from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
  }

 private:
  void* data_ = nullptr;
};

double ElementAt(const std::byte* tensor, uint64_t i, DType dtype) {
  float single = 0;
  double twice = 0;
  uint16_t half = 0;
  switch (dtype) {
    case DType::kFloat64:
      std::memcpy(&twice, tensor + 8 * i, 8);
      return twice;
    case DType::kFloat32:
      std::memcpy(&single, tensor + 4 * i, 4);
      return single;
    default:
      std::memcpy(&half, tensor + 2 * i, 2);
      return dtype == DType::kFloat16 ? FloatFromFloat16(half) : FloatFromBFloat16(half);
  }
}

void SetElement(std::byte* tensor, uint64_t i, DType dtype, double value) {
  const auto single = static_cast<float>(value);
  if (dtype == DType::kFloat64) {
    std::memcpy(tensor + 8 * i, &value, 8);
  } else if (dtype == DType::kFloat32) {
    std::memcpy(tensor + 4 * i, &single, 4);
  } else {
    const uint16_t half =
        dtype == DType::kFloat16 ? Float16FromFloat(single) : BFloat16FromFloat(single);
    std::memcpy(tensor + 2 * i, &half, 2);
  }
}

// Of one call. Threads: a value. Owns: its lists.
struct Case {
  uint64_t count;
  DType dtype;
  std::vector<double> factors;  // this rank's own first
  std::vector<double> arrived;  // empty: none
  bool in_place;
  uint64_t offset;  // of own and target, in elements: what is not aligned to 16 bytes
};

template <typename Sum>
double Expected(const Case& given, const std::vector<Bytes>& tensors, uint64_t i) {
  std::vector<double> factors = given.factors;
  for (size_t s = 0; s < given.arrived.size(); ++s) factors[s + 1] *= given.arrived[s];
  const auto n = static_cast<double>(factors.size());
  bool are_shares = true;
  for (const double factor : factors) are_shares = are_shares && std::abs(factor * n - 1) < 1e-9;
  Sum sum = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const auto x = static_cast<Sum>(ElementAt(tensors[t].data(), i, given.dtype));
    const Sum term = are_shares ? x : static_cast<Sum>(factors[t]) * x;
    sum = t == 0 ? term : sum + term;
  }
  return static_cast<double>(are_shares ? sum / static_cast<Sum>(n) : sum);
}

void ExpectMean(const Case& given, std::mt19937_64& random) {
  const uint64_t element_bytes = SizeOf(given.dtype);
  const uint64_t bytes = given.count * element_bytes;
  const uint64_t shift = given.offset * element_bytes;
  const size_t sources = given.factors.size() - 1;
  std::normal_distribution<double> values;
  std::vector<Bytes> tensors(1 + sources, Bytes(bytes));
  for (Bytes& tensor : tensors) {
    for (uint64_t i = 0; i < given.count; ++i) {
      SetElement(tensor.data(), i, given.dtype, values(random));
    }
  }
  DeviceBytes own(bytes + shift), apart(bytes + shift), theirs(sources * Aligned(bytes));
  DeviceBytes factors(2 * given.factors.size() * sizeof(double));
  DeviceBytes& target = given.in_place ? own : apart;
  own.Put(shift, tensors[0].data(), bytes);
  for (size_t s = 0; s < sources; ++s) theirs.Put(s * Aligned(bytes), tensors[s + 1].data(), bytes);
  const size_t factor_bytes = given.factors.size() * sizeof(double);
  factors.Put(0, given.factors.data(), factor_bytes);
  factors.Put(factor_bytes, given.arrived.data(), given.arrived.size() * sizeof(double));
  const auto* const at = reinterpret_cast<const double*>(factors.at(0));
  const PeltonMean mean = {own.at(shift),
                           theirs.at(0),
                           Aligned(bytes),
                           static_cast<int32_t>(sources),
                           static_cast<int32_t>(given.dtype),
                           at,
                           given.arrived.empty() ? nullptr : at + given.factors.size(),
                           target.at(shift),
                           given.count};
  ASSERT_EQ(pelton_weighted_mean(&mean, nullptr), 0);
  Bytes got(bytes), want(bytes);
  ASSERT_EQ(cudaMemcpy(got.data(), target.at(shift), bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  for (uint64_t i = 0; i < given.count; ++i) {
    const bool is_wide = given.dtype == DType::kFloat64;
    SetElement(want.data(), i, given.dtype,
               is_wide ? Expected<double>(given, tensors, i) : Expected<float>(given, tensors, i));
  }
  EXPECT_TRUE(got == want) << given.count << " of " << given.dtype << ", " << sources << " sources";
}

TEST(MeanKernelTest, CombinesAsTheCpuOrSaysThatThereIsNoGpu) {
  if (!HasGpu()) {
    std::byte nothing[64] = {};
    const auto* const factors = reinterpret_cast<const double*>(nothing);
    const PeltonMean mean = {nothing, nothing, 16,      0, static_cast<int32_t>(DType::kFloat32),
                             factors, nullptr, nothing, 1};
    EXPECT_NE(pelton_weighted_mean(&mean, nullptr), 0);
    return;
  }
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (const DType dtype : kDTypes) {
    for (const uint64_t count : {1, 3, 7, 8, 1000, 4097, 3'000'007}) {
      ExpectMean({count, dtype, {0.3}, {}, false, 0}, random);
      ExpectMean({count, dtype, {1 - 2.0 / 3, 1.0 / 3, 1.0 / 3}, {}, true, 0}, random);
      ExpectMean({count, dtype, {0.5, -0.25, 0.75}, {}, false, 1}, random);
      ExpectMean({count, dtype, {0.5, 1, 2, 3}, {0.25, 0.1, -2}, true, 1}, random);
      ExpectMean({count, dtype, {0.25, 1, 1, 1}, {0.25, 0.25, 0.25}, false, 0}, random);
    }
  }
}

TEST(MeanKernelTest, RefusesWhatItCannotCombineWithoutAGpu) {
  alignas(16) std::byte nothing[64] = {};
  const auto* const factors = reinterpret_cast<const double*>(nothing);
  PeltonMean mean = {nothing, nothing, 16,      0, static_cast<int32_t>(DType::kInt64),
                     factors, nullptr, nothing, 1};
  EXPECT_EQ(pelton_weighted_mean(&mean, nullptr), cudaErrorInvalidValue);
  mean.dtype = static_cast<int32_t>(DType::kFloat32);
  mean.stride_bytes = 4;
  EXPECT_EQ(pelton_weighted_mean(&mean, nullptr), cudaErrorInvalidValue);
  mean.stride_bytes = 16;
  mean.source_count = -1;
  EXPECT_EQ(pelton_weighted_mean(&mean, nullptr), cudaErrorInvalidValue);
  mean.source_count = 0;
  mean.count = 0;
  EXPECT_EQ(pelton_weighted_mean(&mean, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace pelton
