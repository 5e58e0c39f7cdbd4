// Every algorithm that gives all ranks the same result, over many seeds: each seed chooses the
// ranks' number and hosts, latencies, stalled ranks, and the order and times at which tensors
// become ready. Whatever it chooses,
//   SUM-1a  all ranks hold the same bits after each round,
//   and they are those of the undisturbed run.
// A failing seed is printed: PELTON_SEED=<seed> repeats it; PELTON_SEEDS=<count> runs more.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "algorithms/test_ranks.h"
#include "core/actor/sim_test.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr uint64_t kSeeds = 1000;
constexpr int kRounds = 3;

using HostSizes = std::vector<int32_t>;

struct Variant {
  std::string name;
  std::string algorithm;
  AlgorithmOptions options;
};

std::vector<TensorSpec> Tensors() {
  return {{"conv", DType::kFloat32, 12 * 9, {}, 9},
          {"bias", DType::kFloat32, 12, {}},
          {"half", DType::kFloat16, 33, {}},
          {"fc", DType::kFloat32, 20 * 12, {}, 12},
          {"fc.bias", DType::kFloat32, 20, {}}};
}

// By round, rank and slot.
using Results = std::vector<std::vector<std::vector<std::byte>>>;

template <typename T>
void Write(std::byte* data, uint64_t count, uint64_t seed, T scale) {
  auto* const elements = reinterpret_cast<T*>(data);
  for (uint64_t i = 0; i < count; ++i) {
    elements[i] = static_cast<T>((seed * 31 + i * 17) % 101) * scale;
  }
}

bool Produce(int32_t rank, int round, SlotId slot, const TensorSpec& tensor, std::byte* data) {
  const auto seed = static_cast<uint64_t>(rank * 7 + round * 3 + slot.value());
  if (seed % 5 == 0) return false;
  if (tensor.dtype == DType::kFloat32) {
    Write<float>(data, tensor.count, seed, 0.37f);
  } else {  // the bits of small float16 numbers
    Write<uint16_t>(data, tensor.count, seed, 97);
  }
  return true;
}

Results RunRounds(const TestRanksOptions& options) {
  TestRanks ranks(options);
  Results results;
  for (int round = 0; round < kRounds; ++round) {
    const absl::Status status = ranks.RunRound([&](int32_t rank, SlotId slot, std::byte* data) {
      return Produce(rank, round, slot, options.tensors[static_cast<size_t>(slot.value())], data);
    });
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return results;
    for (int32_t rank = 0; rank < ranks.world_size(); ++rank) {
      auto& held = results.emplace_back();
      for (size_t slot = 0; slot < options.tensors.size(); ++slot) {
        held.push_back(ranks.ResultOf(rank, SlotId(static_cast<int32_t>(slot))));
        const SlotResult result = ranks.rounds(rank).ResultOf(SlotId(static_cast<int32_t>(slot)));
        held.back().push_back(std::byte{result.used_by_any});
      }
      if (rank == 0) continue;
      EXPECT_EQ(held, results[results.size() - 2]) << "SUM-1a, rank " << rank;
    }
  }
  return results;
}

class AlgorithmsPropertyTest : public ::testing::TestWithParam<Variant> {};

TEST_P(AlgorithmsPropertyTest, DelaysAndOrdersChangeNothing) {
  const std::vector<HostSizes> hosts = {{2}, {1, 1}, {2, 1}, {1, 2, 1}};
  std::map<HostSizes, Results> undisturbed;
  ForEachSeed(kSeeds, [&](uint64_t seed) {
    TestRanksOptions options;
    options.algorithm = GetParam().algorithm;
    options.options = GetParam().options;
    options.host_sizes = hosts[seed % hosts.size()];
    options.tensors = Tensors();
    options.bucket_size_bytes = 1200;
    SCOPED_TRACE("hosts of " + absl::StrJoin(options.host_sizes, ", ") + " ranks");
    if (undisturbed.count(options.host_sizes) == 0) {
      undisturbed[options.host_sizes] = RunRounds(options);
    }
    options.seed = seed;
    options.is_disturbed = true;
    EXPECT_EQ(RunRounds(options), undisturbed[options.host_sizes]);
  });
}

std::vector<Variant> Variants() {
  return {{"scatter_gather", "gradient_allreduce", {{"scatter_gather", "true"}}},
          {"bytegrad", "bytegrad", {{"hierarchical", "false"}}},
          {"qadam", "qadam", {{"hierarchical", "true"}, {"error_feedback", "true"}}},
          {"one_bit_adam", "one_bit_adam", {{"hierarchical", "false"}}},
          {"slowmo", "slowmo", {{"codec", "one_bit"}, {"hierarchical", "true"}}},
          {"power_sgd", "power_sgd", {{"rank", "2"}, {"start_round", "2"}}}};
}

INSTANTIATE_TEST_SUITE_P(All, AlgorithmsPropertyTest, ::testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace pelton
