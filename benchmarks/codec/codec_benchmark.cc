// GB/s of float32 source that each codec encodes and decodes on one core, and memcpy of the same
// source, in turns; medians, and their share of the copy's rate.
// Usage: codec_benchmark [rounds [name]]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "algorithms/codec/codec.h"
#include "core/base/check.h"

namespace pelton::benchmarks {
namespace {

// Memory that no page is missing of, aligned as tensors are.
class Buffer {
 public:
  explicit Buffer(uint64_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)),
              std::free) {
    std::memset(data_.get(), 1, bytes);
  }
  std::byte* data() { return data_.get(); }

 private:
  std::unique_ptr<std::byte, void (*)(void*)> data_;
};

// Median rates of several things done in turns. Units: GB/s of `bytes`.
std::vector<double> RatesInTurns(uint64_t bytes, int rounds,
                                 const std::vector<std::function<void()>>& things) {
  // As often as 16 MiB of work, so that the clock does not count.
  const auto repeats = std::max<uint64_t>(1, (uint64_t{16} << 20) / bytes);
  std::vector<std::vector<double>> rates(things.size());
  for (int round = 0; round <= rounds; ++round) {
    for (size_t t = 0; t < things.size(); ++t) {
      const auto begin = std::chrono::steady_clock::now();
      for (uint64_t r = 0; r < repeats; ++r) things[t]();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      if (round > 0) rates[t].push_back(bytes * repeats / seconds.count() / 1e9);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& rate : rates) {
    std::nth_element(rate.begin(), rate.begin() + rate.size() / 2, rate.end());
    medians.push_back(rate[rate.size() / 2]);
  }
  return medians;
}

void Measure(const std::string& name, uint64_t bytes, int rounds) {
  const uint64_t count = bytes / sizeof(float);
  const std::unique_ptr<Codec> codec = *MakeCodec(name, {});
  const uint64_t encoded_bytes = codec->EncodedBytes(count, DType::kFloat32);
  Buffer source(bytes);
  Buffer target(bytes);
  Buffer encoded(encoded_bytes);
  std::mt19937 random(1);
  std::normal_distribution<float> gauss(0, 0.01f);
  float* const elements = reinterpret_cast<float*>(source.data());
  for (uint64_t i = 0; i < count; ++i) elements[i] = gauss(random);

  const std::vector<double> rates =
      RatesInTurns(bytes, rounds,
                   {[&] { std::memcpy(target.data(), source.data(), bytes); },
                    [&] { codec->Encode(source.data(), count, DType::kFloat32, encoded.data()); },
                    [&] { codec->Decode(encoded.data(), count, DType::kFloat32, target.data()); }});
  std::printf("%-14s %4llu MiB %8.1f x %8.2f %8.2f %5.0f %% %8.2f %5.0f %%\n", name.c_str(),
              static_cast<unsigned long long>(bytes >> 20),
              static_cast<double>(bytes) / static_cast<double>(encoded_bytes), rates[0], rates[1],
              100 * rates[1] / rates[0], rates[2], 100 * rates[2] / rates[0]);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  int rounds = 21;
  if (argc > 1) PELTON_CHECK(absl::SimpleAtoi(argv[1], &rounds)) << argv[1];
  std::printf("one core, GB/s of float32, median of %d turns\n", rounds);
  std::printf("%-14s %8s %10s %8s %8s %7s %8s %7s\n", "codec", "source", "smaller", "memcpy",
              "encode", "share", "decode", "share");
  for (const CodecRegistry::Entry& entry : CodecRegistry::Get().List()) {
    if (argc > 2 && entry.name != argv[2]) continue;
    for (const uint64_t mebibytes : {1, 64}) Measure(entry.name, mebibytes << 20, rounds);
  }
  return 0;
}

}  // namespace
}  // namespace pelton::benchmarks

int main(int argc, char** argv) { return pelton::benchmarks::Main(argc, argv); }
