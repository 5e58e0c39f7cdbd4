// GB/s of source that each codec encodes, decodes and encodes with error feedback on one core,
// beside memcpy of the same source, in turns: medians, and their share of the copy's rate (the
// median of the turns' shares). The source is gaussian. Usage: codec_benchmark [rounds [name
// [dtype]]]; "all" is any name.
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
#include "algorithms/codec/convert.h"
#include "algorithms/codec/error_feedback.h"
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

using Things = std::vector<std::function<void()>>;

// Rates of several things done in turns, one row a turn. Units: GB/s of `bytes`.
std::vector<std::vector<double>> RatesInTurns(uint64_t bytes, int rounds, const Things& things) {
  // As often as 16 MiB of work, so that the clock does not count.
  const auto repeats = std::max<uint64_t>(1, (uint64_t{16} << 20) / bytes);
  std::vector<std::vector<double>> turns;
  for (int round = 0; round <= rounds; ++round) {
    std::vector<double> rates;
    for (const std::function<void()>& thing : things) {
      const auto begin = std::chrono::steady_clock::now();
      for (uint64_t r = 0; r < repeats; ++r) thing();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      rates.push_back(static_cast<double>(bytes * repeats) / seconds.count() / 1e9);
    }
    if (round > 0) turns.push_back(std::move(rates));
  }
  return turns;
}

template <typename F>
double MedianOfTurns(const std::vector<std::vector<double>>& turns, F of_turn) {
  std::vector<double> values;
  for (const std::vector<double>& turn : turns) values.push_back(of_turn(turn));
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double BestOf(const std::vector<std::vector<double>>& turns, size_t thing) {
  double best = 0;
  for (const std::vector<double>& turn : turns) best = std::max(best, turn[thing]);
  return best;
}

// Threads: a value. Owns: nothing.
struct Subject {
  const std::string& name;
  DType dtype;
  uint64_t bytes;
};

void Print(const Subject& subject, uint64_t encoded_bytes,
           const std::vector<std::vector<double>>& turns) {
  std::printf("%-14s %-9s %4llu MiB %6.1f x", subject.name.c_str(),
              std::string(NameOf(subject.dtype)).c_str(),
              static_cast<unsigned long long>(subject.bytes >> 20),
              static_cast<double>(subject.bytes) / static_cast<double>(encoded_bytes));
  for (size_t t = 0; t < turns[0].size(); ++t) {
    const auto rate = [t](const std::vector<double>& turn) { return turn[t]; };
    const auto share = [t](const std::vector<double>& turn) { return turn[t] / turn[0]; };
    std::printf(" %8.2f", MedianOfTurns(turns, rate));
    if (t == 0) continue;
    std::printf(" %4.0f [%3.0f]", 100 * MedianOfTurns(turns, share),
                100 * BestOf(turns, t) / BestOf(turns, 0));
  }
  std::printf("\n");
  std::fflush(stdout);
}

void Measure(const Subject& subject, int rounds) {
  const DType dtype = subject.dtype;
  const uint64_t count = subject.bytes / SizeOf(dtype);
  const std::unique_ptr<Codec> codec = *MakeCodec(subject.name, {});
  Buffer source(subject.bytes);
  Buffer target(subject.bytes);
  Buffer residual(subject.bytes);
  Buffer encoded(codec->EncodedBytes(count, dtype));
  std::mt19937 random(1);
  std::normal_distribution<float> gauss(0, 0.01f);
  for (uint64_t i = 0; i < count; ++i) {
    const float x = gauss(random);
    codec::FloatsTo(&x, 1, dtype, source.data() + i * SizeOf(dtype));
  }
  std::memset(residual.data(), 0, subject.bytes);

  const Things things = {[&] { std::memcpy(target.data(), source.data(), subject.bytes); },
                         [&] { codec->Encode(source.data(), count, dtype, encoded.data()); },
                         [&] { codec->Decode(encoded.data(), count, dtype, target.data()); },
                         [&] {
                           EncodeWithFeedback(*codec, source.data(), count, dtype, residual.data(),
                                              encoded.data(), target.data());
                         }};
  Print(subject, codec->EncodedBytes(count, dtype), RatesInTurns(subject.bytes, rounds, things));
}

bool Chosen(int argc, char** argv, int argument, const std::string& name) {
  return argument >= argc || name == argv[argument] || std::string(argv[argument]) == "all";
}

int Main(int argc, char** argv) {
  int rounds = 21;
  if (argc > 1) PELTON_CHECK(absl::SimpleAtoi(argv[1], &rounds)) << argv[1];
  std::printf("one core, GB/s of source, median of %d turns\n", rounds);
  std::printf("%-14s %-9s %8s %8s %8s %8s %10s %8s %10s %8s %10s\n", "codec", "dtype", "source",
              "smaller", "memcpy", "encode", "share %", "decode", "share %", "feedback", "share %");
  for (const CodecRegistry::Entry& entry : CodecRegistry::Get().List()) {
    if (!Chosen(argc, argv, 2, entry.name)) continue;
    for (const DType dtype :
         {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
      if (!Chosen(argc, argv, 3, std::string(NameOf(dtype)))) continue;
      for (const uint64_t mebibytes : {1, 64}) {
        Measure({entry.name, dtype, mebibytes << 20}, rounds);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace pelton::benchmarks

int main(int argc, char** argv) { return pelton::benchmarks::Main(argc, argv); }
