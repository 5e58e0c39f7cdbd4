// codec_check [--elements COUNT]
//
// Runs the GPU's codecs on a GPU: the bytes against the CPU's (min_max_uint8_test.cc and
// piece_kernels_suite.cc), and so those of averages (mean_kernel_suite.cc), then how fast they are
// beside the device's own copy, in turns. tools/gpu_check starts it. Exit status: 0 all is well, 1
// something failed, 2 wrong usage, 3 there is no GPU.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "algorithms/codec/cuda/codec_rates.h"
#include "core/memory/dtype.h"
#include "gtest/gtest.h"

namespace pelton::codec {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kNoGpu = 3;

int Check(uint64_t largest_count) {
  int devices = 0;
  const int found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    // ALLOW: this is a program
    std::cout << "no GPU here: cudaGetDeviceCount: "
              << cudaGetErrorString(static_cast<cudaError_t>(found)) << "\n";
    return kNoGpu;
  }
  if (RUN_ALL_TESTS() != 0) return kFailed;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (uint64_t count = uint64_t{1} << 18; count <= largest_count; count <<= 4) {
      if (const absl::Status status = MeasureRates(dtype, count); !status.ok()) {
        // ALLOW: this is a program
        std::cout << status << "\n";
        return kFailed;
      }
    }
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace pelton::codec

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  uint64_t largest_count = uint64_t{1} << 26;
  const bool is_default = argc == 1;
  const bool is_given = argc == 3 && std::string(argv[1]) == "--elements" &&
                        absl::SimpleAtoi(argv[2], &largest_count);
  if (!is_default && !is_given) {
    // ALLOW: this is a program
    std::cout << "usage: codec_check [--elements COUNT]\n";
    return pelton::codec::kUsage;
  }
  return pelton::codec::Check(largest_count);
}
