// codec_check [--elements COUNT]
//
// Runs the GPU's codecs on a GPU: the bytes against the reference (min_max_uint8_test.cc), then how
// fast they are beside the device's own copy, in turns. tools/gpu_check starts it. Exit status: 0
// all is well, 1 something failed, 2 wrong usage, 3 there is no GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "algorithms/codec/codec.h"
#include "algorithms/codec/cuda/min_max_uint8.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace pelton::codec {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kNoGpu = 3;
constexpr int kTurns = 7;
constexpr int kCallsPerTurn = 20;

absl::Status ToStatus(int error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("%s: %s", call, cudaGetErrorString(static_cast<cudaError_t>(error))));
}

// What is measured, and how many bytes it has to read and write at least.
struct Contestant {
  const char* name;
  double bytes;
  std::function<int()> run;
  std::vector<double> rates = {};  // bytes per second, by turn
};

// Device memory. Threads: one. Owns: it.
struct Buffers {
  std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::byte* encoded = nullptr;
  std::byte* scratch = nullptr;

  ~Buffers() {
    for (std::byte* memory : {source, target, encoded, scratch}) cudaFree(memory);
  }
  absl::Status Allocate(uint64_t tensor_bytes, uint64_t encoded_bytes) {
    const std::array<std::pair<std::byte**, uint64_t>, 4> wanted = {
        {{&source, tensor_bytes},
         {&target, tensor_bytes},
         {&encoded, encoded_bytes},
         {&scratch, kMinMaxScratchBytes}}};
    for (const auto& [memory, bytes] : wanted) {
      RETURN_IF_ERROR(ToStatus(cudaMalloc(reinterpret_cast<void**>(memory), bytes), "cudaMalloc"));
    }
    return ToStatus(cudaMemset(source, 0x3C, tensor_bytes), "cudaMemset");
  }
};

absl::StatusOr<double> SecondsOf(const std::function<int()>& run) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  RETURN_IF_ERROR(ToStatus(cudaEventCreate(&begin), "cudaEventCreate"));
  RETURN_IF_ERROR(ToStatus(cudaEventCreate(&end), "cudaEventCreate"));
  RETURN_IF_ERROR(ToStatus(run(), "the first call"));
  RETURN_IF_ERROR(ToStatus(cudaEventRecord(begin), "cudaEventRecord"));
  for (int i = 0; i < kCallsPerTurn; ++i) RETURN_IF_ERROR(ToStatus(run(), "a call"));
  RETURN_IF_ERROR(ToStatus(cudaEventRecord(end), "cudaEventRecord"));
  RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(end), "cudaEventSynchronize"));
  float milliseconds = 0;
  RETURN_IF_ERROR(
      ToStatus(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime"));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return milliseconds / 1e3 / kCallsPerTurn;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::Status Measure(DType dtype, uint64_t count) {
  const uint64_t tensor_bytes = count * SizeOf(dtype);
  ASSIGN_OR_RETURN(const std::unique_ptr<const Codec> codec, MakeCodec("min_max_uint8", {}));
  const uint64_t encoded_bytes = codec->EncodedBytes(count, dtype);
  Buffers buffers;
  RETURN_IF_ERROR(buffers.Allocate(tensor_bytes, encoded_bytes));
  const GpuChunk chunk = {count, dtype, nullptr};
  const auto moved = static_cast<double>(tensor_bytes + encoded_bytes);
  std::vector<Contestant> contestants = {
      {"copy", 2.0 * static_cast<double>(tensor_bytes),
       [&] {
         return cudaMemcpyAsync(buffers.target, buffers.source, tensor_bytes,
                                cudaMemcpyDeviceToDevice, nullptr);
       }},
      {"encode", moved,
       [&] { return EncodeMinMaxOnGpu(buffers.source, chunk, buffers.encoded, buffers.scratch); }},
      {"decode", moved, [&] { return DecodeMinMaxOnGpu(buffers.encoded, chunk, buffers.target); }},
  };
  for (int turn = 0; turn < kTurns; ++turn) {
    for (Contestant& contestant : contestants) {
      ASSIGN_OR_RETURN(const double seconds, SecondsOf(contestant.run));
      contestant.rates.push_back(contestant.bytes / seconds);
    }
  }
  const double copy = Median(contestants.front().rates);
  for (const Contestant& contestant : contestants) {
    const double rate = Median(contestant.rates);
    // ALLOW: this is a program
    std::cout << absl::StrFormat("min_max_uint8 %-8s %12d elements  %-6s %8.1f GB/s  %5.1f %%\n",
                                 NameOf(dtype), count, contestant.name, rate / 1e9,
                                 100 * rate / copy);
  }
  return absl::OkStatus();
}

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
      if (const absl::Status status = Measure(dtype, count); !status.ok()) {
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
