#include "algorithms/codec/cuda/codec_rates.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "algorithms/codec/codec.h"
#include "algorithms/codec/cuda/min_max_uint8.h"
#include "algorithms/codec/cuda/piece_kernels.h"
#include "algorithms/codec/reference.h"
#include "algorithms/stage/piece_codec.h"
#include "core/base/status.h"

namespace pelton::codec {
namespace {

constexpr int kTurns = 7;
constexpr int kCallsPerTurn = 20;
constexpr int32_t kMostVersions = 4;
constexpr uint64_t kSeed = 20261126;

absl::Status ToStatus(int error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("%s: %s", call, cudaGetErrorString(static_cast<cudaError_t>(error))));
}

// Units: bytes.
struct Sizes {
  uint64_t tensor;
  uint64_t chunk;   // encoded as one
  uint64_t pieces;  // encoded in pieces
};

// What is measured, and how many bytes it has to read and write at least.
struct Contestant {
  const char* name;
  uint64_t bytes;
  std::function<int()> run;
  std::vector<double> rates = {};  // bytes per second, by turn
};

// A million numbers of the standard normal distribution, as elements of a dtype.
std::vector<std::byte> NormalElements(DType dtype, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> numbers(uint64_t{1} << 20);
  for (float& number : numbers) number = normal(random);
  return ElementsOfFloats(numbers, dtype);
}

// Device memory. Threads: one. Owns: it.
struct Buffers {
  std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::byte* encoded = nullptr;
  std::byte* scratch = nullptr;
  std::byte* versions = nullptr;

  ~Buffers() {
    for (std::byte* memory : {source, target, encoded, scratch, versions}) cudaFree(memory);
  }
  absl::Status Allocate(const Sizes& sizes) {
    const std::array<std::pair<std::byte**, uint64_t>, 5> wanted = {
        {{&source, sizes.tensor},
         {&target, sizes.tensor},
         {&encoded, std::max(sizes.chunk, sizes.pieces)},
         {&scratch, kMinMaxScratchBytes},
         {&versions, kMostVersions * sizes.pieces}}};
    for (const auto& [memory, bytes] : wanted) {
      RETURN_IF_ERROR(ToStatus(cudaMalloc(reinterpret_cast<void**>(memory), bytes), "cudaMalloc"));
    }
    return absl::OkStatus();
  }

  // The source is like gradients, and each version a message of it: what all elements are alike
  // in, or garbage, the kernels compute in other ways.
  absl::Status Fill(const Sizes& sizes, DType dtype, uint64_t count) {
    std::mt19937_64 random(kSeed);
    const std::vector<std::byte> block = NormalElements(dtype, random);
    for (uint64_t at = 0; at < sizes.tensor; at += block.size()) {
      RETURN_IF_ERROR(ToStatus(
          cudaMemcpy(source + at, block.data(), std::min<uint64_t>(block.size(), sizes.tensor - at),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy"));
    }
    for (int32_t rank = 0; rank < kMostVersions; ++rank) {
      RETURN_IF_ERROR(ToStatus(
          pelton_encode_pieces(source, count, static_cast<int32_t>(dtype),
                               versions + static_cast<uint64_t>(rank) * sizes.pieces, nullptr),
          "pelton_encode_pieces"));
    }
    return absl::OkStatus();
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

std::vector<Contestant> ChunkContestants(const Buffers& b, const Sizes& sizes,
                                         const GpuChunk& chunk) {
  return {
      {"encode", sizes.tensor + sizes.chunk,
       [=, &b] { return EncodeMinMaxOnGpu(b.source, chunk, b.encoded, b.scratch); }},
      {"decode", sizes.tensor + sizes.chunk,
       [=, &b] { return DecodeMinMaxOnGpu(b.encoded, chunk, b.target); }},
  };
}

std::vector<Contestant> PieceContestants(const Buffers& b, const Sizes& sizes, uint64_t count,
                                         DType dtype) {
  const auto number = static_cast<int32_t>(dtype);
  const auto merge = [=, &b](int32_t ranks) {
    const PeltonMessages versions = {b.versions, sizes.pieces, ranks};
    return pelton_merge_pieces(&versions, count, number, static_cast<uint64_t>(ranks), b.encoded,
                               nullptr);
  };
  return {
      {"encode pieces", sizes.tensor + sizes.pieces,
       [=, &b] { return pelton_encode_pieces(b.source, count, number, b.encoded, nullptr); }},
      {"merge 2", 3 * sizes.pieces, [=] { return merge(2); }},
      {"merge 4", 5 * sizes.pieces, [=] { return merge(kMostVersions); }},
      {"decode pieces", sizes.tensor + sizes.pieces,
       [=, &b] { return pelton_decode_pieces(b.encoded, count, number, b.target, nullptr); }},
  };
}

void Print(const std::vector<Contestant>& contestants, DType dtype, uint64_t count) {
  const double copy = Median(contestants.front().rates);
  for (const Contestant& contestant : contestants) {
    const double rate = Median(contestant.rates);
    // ALLOW: it is for a program
    std::cout << absl::StrFormat("min_max_uint8 %-8s %12d elements  %-13s %8.1f GB/s  %5.1f %%\n",
                                 NameOf(dtype), count, contestant.name, rate / 1e9,
                                 100 * rate / copy);
  }
}

}  // namespace

absl::Status MeasureRates(DType dtype, uint64_t count) {
  ASSIGN_OR_RETURN(const std::unique_ptr<const Codec> codec, MakeCodec("min_max_uint8", {}));
  const Sizes sizes = {count * SizeOf(dtype), codec->EncodedBytes(count, dtype),
                       PieceCodec::EncodedBytes(*codec, dtype, count)};
  Buffers buffers;
  RETURN_IF_ERROR(buffers.Allocate(sizes));
  RETURN_IF_ERROR(buffers.Fill(sizes, dtype, count));
  std::vector<Contestant> contestants = {{"copy", 2 * sizes.tensor, [&] {
                                            return cudaMemcpyAsync(
                                                buffers.target, buffers.source, sizes.tensor,
                                                cudaMemcpyDeviceToDevice, nullptr);
                                          }}};
  for (Contestant& chunk : ChunkContestants(buffers, sizes, {count, dtype, nullptr})) {
    contestants.push_back(std::move(chunk));
  }
  for (Contestant& pieces : PieceContestants(buffers, sizes, count, dtype)) {
    contestants.push_back(std::move(pieces));
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    for (Contestant& contestant : contestants) {
      ASSIGN_OR_RETURN(const double seconds, SecondsOf(contestant.run));
      contestant.rates.push_back(static_cast<double>(contestant.bytes) / seconds);
    }
  }
  Print(contestants, dtype, count);
  return absl::OkStatus();
}

}  // namespace pelton::codec
