// PowerSGD against one process in float64, and the bytes that it sends.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/codec/reference.h"
#include "algorithms/stage/power_sgd_stage.h"
#include "algorithms/test_ranks.h"
#include "core/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;
using Numbers = std::vector<double>;

constexpr uint64_t kRows = 37;
constexpr uint64_t kColumns = 50;
const SlotId kMatrix(1);

// One matrix that is compressed, one that is too small to be, and two that are none.
std::vector<TensorSpec> Tensors(DType dtype) {
  return {{"bias", dtype, 50, {}},
          {"weight", dtype, kRows * kColumns, {}, kColumns},
          {"small", dtype, 6, {}, 3},
          {"empty", dtype, 0, {}, 3}};
}

// Within -1 and 1.
Numbers Random(uint64_t seed, uint64_t count) {
  Numbers numbers(count);
  uint64_t state = seed * 2654435761u + 12345;
  for (double& each : numbers) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    each = static_cast<double>(static_cast<int64_t>(state) >> 40) * 0x1p-23;
  }
  return numbers;
}

std::vector<std::byte> BytesOf(const Numbers& numbers, DType dtype) {
  if (dtype != DType::kFloat64) {
    return codec::ElementsOfFloats(std::vector<float>(numbers.begin(), numbers.end()), dtype);
  }
  std::vector<std::byte> bytes(numbers.size() * sizeof(double));
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

Numbers NumbersOf(const std::vector<std::byte>& bytes, DType dtype) {
  if (dtype != DType::kFloat64) {
    const auto floats = codec::FloatsOfElements(bytes.data(), bytes.size() / SizeOf(dtype), dtype);
    return {floats.begin(), floats.end()};
  }
  Numbers numbers(bytes.size() / sizeof(double));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

// As the dtype holds it.
Numbers Gradient(int32_t rank, int round, SlotId slot, const TensorSpec& tensor) {
  const auto seed = static_cast<uint64_t>(rank * 1000 + round * 10 + slot.value());
  return NumbersOf(BytesOf(Random(seed, tensor.count), tensor.dtype), tensor.dtype);
}

// Algorithms 1 and 2 of arXiv 1905.13727 for one matrix on all ranks.
// Threads: one. Owns: the errors and the query.
class Reference {
 public:
  Reference(int32_t world_size, uint64_t rank, Numbers query)
      : rank_(rank),
        query_(std::move(query)),
        errors_(static_cast<size_t>(world_size), Numbers(kRows * kColumns)) {}

  Numbers Round(const std::vector<Numbers>& gradients) {
    Numbers mean(kRows * kColumns);
    for (size_t r = 0; r < errors_.size(); ++r) {
      for (size_t i = 0; i < mean.size(); ++i) {
        errors_[r][i] += gradients[r][i];
        mean[i] += errors_[r][i] / static_cast<double>(errors_.size());
      }
    }
    const Numbers left = LeftOf(mean);
    Numbers result(mean.size());
    for (uint64_t k = 0; k < rank_; ++k) {
      for (uint64_t j = 0; j < kColumns; ++j) {
        double sum = 0;
        for (uint64_t i = 0; i < kRows; ++i) sum += mean[i * kColumns + j] * left[k * kRows + i];
        query_[k * kColumns + j] = sum;
        for (uint64_t i = 0; i < kRows; ++i) result[i * kColumns + j] += left[k * kRows + i] * sum;
      }
    }
    for (Numbers& error : errors_) {
      for (size_t i = 0; i < error.size(); ++i) error[i] -= result[i];
    }
    return result;
  }

 private:
  // An orthonormal basis of what `mean` makes of the query.
  Numbers LeftOf(const Numbers& mean) const {
    Numbers left(rank_ * kRows);
    for (uint64_t k = 0; k < rank_; ++k) {
      double* const own = &left[k * kRows];
      for (uint64_t i = 0; i < kRows; ++i) {
        for (uint64_t j = 0; j < kColumns; ++j) {
          own[i] += mean[i * kColumns + j] * query_[k * kColumns + j];
        }
      }
      for (uint64_t before = 0; before < k; ++before) {
        const double* const other = &left[before * kRows];
        double along = 0;
        for (uint64_t i = 0; i < kRows; ++i) along += own[i] * other[i];
        for (uint64_t i = 0; i < kRows; ++i) own[i] -= along * other[i];
      }
      double square = 0;
      for (uint64_t i = 0; i < kRows; ++i) square += own[i] * own[i];
      for (uint64_t i = 0; i < kRows; ++i) own[i] /= std::sqrt(square);
    }
    return left;
  }

  const uint64_t rank_;
  Numbers query_;
  std::vector<Numbers> errors_;
};

// One world, its tensors and its gradients.
// Threads: one. Owns: the ranks.
class World {
 public:
  World(int32_t world_size, DType dtype, AlgorithmOptions options,
        const std::string& algorithm = "power_sgd")
      : tensors_(Tensors(dtype)) {
    // From the first round on, unless `options` say otherwise.
    if (algorithm == "power_sgd")
      options.merge(AlgorithmOptions{{"rank", "1"}, {"start_round", "1"}});
    TestRanksOptions ranks_options;
    ranks_options.algorithm = algorithm;
    ranks_options.options = std::move(options);
    ranks_options.host_sizes = {world_size};
    ranks_options.tensors = tensors_;
    ranks_ = std::make_unique<TestRanks>(ranks_options);
  }

  // Rank r's query before the first round.
  void SetQuery(const Numbers& query) {
    for (int32_t rank = 0; rank < ranks_->world_size(); ++rank) {
      std::vector<SlotState> states = *ranks_->rounds(rank).SaveStates(absl::InfiniteFuture());
      for (SlotState& state : states) {
        if (state.slot != kMatrix || state.key.find("query") == std::string::npos) continue;
        const std::vector<std::byte> bytes = BytesOf(query, state.dtype);
        ASSERT_LE(bytes.size(), state.bytes.size());
        std::copy(bytes.begin(), bytes.end(), state.bytes.begin());
      }
      PELTON_CHECK_OK(ranks_->rounds(rank).LoadStates(states, absl::InfiniteFuture()));
    }
  }

  // One world at a time: the simulation of another would not run on while this one waits.
  static std::vector<std::vector<std::byte>> MatrixByRound(
      int rounds, int32_t world_size, AlgorithmOptions options,
      const std::string& algorithm = "power_sgd", int replan_after = -1) {
    World world(world_size, DType::kFloat32, std::move(options), algorithm);
    std::vector<std::vector<std::byte>> held;
    for (int round = 0; round < rounds; ++round) {
      world.RunRound(round);
      held.push_back(world.Bytes(kMatrix));
      if (round != replan_after) continue;
      EXPECT_TRUE(world.ranks().Replan({SlotId(2), SlotId(0), SlotId(3), SlotId(1)}).ok());
    }
    return held;
  }

  void RunRound(int round) {
    RunRound([&](int32_t rank, SlotId slot, const TensorSpec& tensor) {
      return Gradient(rank, round, slot, tensor);
    });
  }
  // What every rank has of a tensor that nobody uses: zeros, or the last round's result, which a
  // gradient that is not cleared still is.
  enum class Unused { kZeros, kLastResult };
  void RunRoundWithout(SlotId slot, Unused unused, int round) {
    RunRound([&](int32_t rank, SlotId id, const TensorSpec& tensor) -> std::optional<Numbers> {
      if (id != slot) return Gradient(rank, round, id, tensor);
      if (unused == Unused::kLastResult) {
        PELTON_CHECK_OK(ranks_->rounds(rank).MarkUnused(slot, nullptr));
      }
      return std::nullopt;
    });
  }
  // `gradient`: nothing where the rank does not use the tensor.
  template <typename F>
  void RunRound(F gradient) {
    const absl::Status status = ranks_->RunRound([&](int32_t rank, SlotId slot, std::byte* data) {
      const TensorSpec& tensor = tensors_[static_cast<size_t>(slot.value())];
      const std::optional<Numbers> numbers = gradient(rank, slot, tensor);
      if (!numbers.has_value()) return false;
      const auto bytes = BytesOf(*numbers, tensor.dtype);
      std::copy(bytes.begin(), bytes.end(), data);
      return slot.value() != 2 || rank == 0;
    });
    ASSERT_TRUE(status.ok()) << status;
  }

  std::vector<std::byte> Bytes(SlotId slot, int32_t rank = 0) {
    return ranks_->ResultOf(rank, slot);
  }
  Numbers Result(SlotId slot) {
    return NumbersOf(Bytes(slot), tensors_[static_cast<size_t>(slot.value())].dtype);
  }
  TestRanks& ranks() { return *ranks_; }

 private:
  const std::vector<TensorSpec> tensors_;
  std::unique_ptr<TestRanks> ranks_;
};

double LargestDifference(const Numbers& a, const Numbers& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

struct Precision {
  DType dtype;
  double tolerance;
};
class PowerSgdTest : public ::testing::TestWithParam<std::tuple<Precision, int32_t, uint64_t>> {};

TEST_P(PowerSgdTest, FollowsOneProcessAndRanksAgree) {
  const auto& [precision, world_size, rank] = GetParam();
  World world(world_size, precision.dtype, {{"rank", absl::StrCat(rank)}});
  const Numbers query = Random(99, rank * kColumns);
  world.SetQuery(query);
  Reference reference(world_size, rank, query);
  for (int round = 0; round < 4; ++round) {
    world.RunRound(round);
    std::vector<Numbers> gradients;
    for (int32_t r = 0; r < world_size; ++r) {
      gradients.push_back(Gradient(r, round, kMatrix, Tensors(precision.dtype)[kMatrix.value()]));
    }
    EXPECT_LT(LargestDifference(world.Result(kMatrix), reference.Round(gradients)),
              precision.tolerance)
        << "round " << round;
    for (int32_t r = 1; r < world_size; ++r) {
      for (int32_t slot : {0, 1, 2}) {
        EXPECT_EQ(world.Bytes(SlotId(slot), r), world.Bytes(SlotId(slot))) << "rank " << r;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PowerSgdTest,
                         ::testing::Combine(::testing::Values(Precision{DType::kFloat32, 1e-4},
                                                              Precision{DType::kFloat64, 1e-12},
                                                              Precision{DType::kFloat16, 2e-3},
                                                              Precision{DType::kBFloat16, 2e-2}),
                                            ::testing::Values(2, 3, 4, 8), ::testing::Values(1, 4)),
                         [](const auto& info) {
                           return absl::StrCat(NameOf(std::get<0>(info.param).dtype), "_",
                                               std::get<1>(info.param), "_ranks_rank_",
                                               std::get<2>(info.param));
                         });

TEST(PowerSgdExactTest, AMatrixOfThatRankArrivesAtOnce) {
  World world(3, DType::kFloat32, {{"rank", "3"}});
  const Numbers column = Random(1, kRows);
  const auto gradient = [&](int32_t rank, SlotId slot, const TensorSpec& tensor) {
    if (slot != kMatrix) return Random(5, tensor.count);
    Numbers outer(tensor.count);
    const Numbers row = Random(static_cast<uint64_t>(rank) + 2, kColumns);
    for (size_t i = 0; i < outer.size(); ++i) outer[i] = column[i / kColumns] * row[i % kColumns];
    return outer;
  };
  Numbers mean(kRows * kColumns);
  for (int32_t rank = 0; rank < 3; ++rank) {
    const Numbers mine = gradient(rank, kMatrix, Tensors(DType::kFloat32)[kMatrix.value()]);
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += mine[i] / 3;
  }
  for (int round = 0; round < 2; ++round) {
    world.RunRound(gradient);
    EXPECT_LT(LargestDifference(world.Result(kMatrix), mean), 1e-5);
  }
}

TEST(PowerSgdExactTest, WhatIsNotCompressedIsAMean) {
  const auto held = [](const std::string& algorithm) {
    World world(4, DType::kFloat32, {}, algorithm);
    world.RunRound(0);
    std::vector<std::vector<std::byte>> results;
    for (int32_t slot : {0, 2, 3}) results.push_back(world.Bytes(SlotId(slot)));
    return results;
  };
  EXPECT_EQ(held("power_sgd"), held("gradient_allreduce"));
}

TEST(PowerSgdExactTest, StartsInFullPrecisionWhereToldTo) {
  const auto held = World::MatrixByRound(3, 3, {{"start_round", "3"}});
  const auto plain = World::MatrixByRound(3, 3, {}, "gradient_allreduce");
  EXPECT_EQ(held[0], plain[0]);
  EXPECT_EQ(held[1], plain[1]);
  EXPECT_NE(held[2], plain[2]);
}

TEST(PowerSgdExactTest, OneRankKeepsItsGradient) {
  World world(1, DType::kFloat32, {});
  world.RunRound(0);
  EXPECT_EQ(world.Result(kMatrix),
            Gradient(0, 0, kMatrix, Tensors(DType::kFloat32)[kMatrix.value()]));
}

TEST(PowerSgdStateTest, FollowsItsTensorsIntoAnotherPlan) {
  EXPECT_EQ(World::MatrixByRound(4, 2, {{"rank", "2"}}, "power_sgd", /*replan_after=*/1),
            World::MatrixByRound(4, 2, {{"rank", "2"}}));
}

TEST(PowerSgdStateTest, ARoundThatDoesNotUseATensorLeavesItsErrorAsItIs) {
  const auto last = [](std::optional<World::Unused> pause) {
    World world(3, DType::kFloat32, {});
    world.RunRound(0);
    if (pause.has_value()) world.RunRoundWithout(kMatrix, *pause, 7);
    world.RunRound(1);
    return world.Result(kMatrix);
  };
  const Numbers expected = last(std::nullopt);
  EXPECT_EQ(last(World::Unused::kZeros), expected);
  EXPECT_EQ(last(World::Unused::kLastResult), expected);
}

TEST(PowerSgdStateTest, AnOverflowShowsInOneRoundOnly) {
  World world(2, DType::kFloat32, {});
  world.RunRound([](int32_t rank, SlotId slot, const TensorSpec& tensor) {
    Numbers numbers = Random(1, tensor.count);
    if (rank == 1 && slot == kMatrix) numbers[7] = INFINITY;
    return numbers;
  });
  const Numbers overflown = world.Result(kMatrix);
  EXPECT_FALSE(
      std::all_of(overflown.begin(), overflown.end(), [](double x) { return std::isfinite(x); }));
  for (int round = 1; round < 3; ++round) {
    world.RunRound(round);
    for (double each : world.Result(kMatrix)) ASSERT_TRUE(std::isfinite(each));
  }
}

TEST(PowerSgdStateTest, ZerosDoNotStopIt) {
  World world(2, DType::kFloat32, {});
  world.RunRound([](int32_t, SlotId, const TensorSpec& tensor) { return Numbers(tensor.count); });
  for (double each : world.Result(kMatrix)) ASSERT_EQ(each, 0);
  world.RunRound(1);
  double largest = 0;
  for (double each : world.Result(kMatrix)) largest = std::max(largest, std::abs(each));
  EXPECT_GT(largest, 0.01);
}

TEST(PowerSgdBytesTest, SendsTheBytesOfItsFormula) {
  for (int32_t world_size : {2, 3, 4, 8}) {
    World world(world_size, DType::kFloat32, {{"rank", "2"}});
    world.RunRound(0);
    const uint64_t plain = 50 + 6;  // bias, small
    const uint64_t count = plain + 2 * (kRows + kColumns);
    const uint64_t round = 4;  // a byte for each slot
    EXPECT_EQ(world.ranks().SentBytes(),
              2 * static_cast<uint64_t>(world_size - 1) * (count * 4 + round));
  }
}

TEST(PowerSgdOptionsTest, NamesWhatDoesNotFit) {
  const auto error = [](const AlgorithmOptions& options) {
    return MakeAlgorithm("power_sgd", options).status().ToString();
  };
  EXPECT_THAT(error({{"rank", "0"}}), HasSubstr("option rank is '0'"));
  EXPECT_THAT(error({{"min_compression", "0.5"}}), HasSubstr("option min_compression is '0.5'"));
  EXPECT_THAT(error({{"ranks", "1"}}), HasSubstr("option 'ranks' is unknown"));
}

TEST(PowerSgdOptionsTest, CompressesWhereItGains) {
  const auto compressed = [](uint64_t count, uint64_t columns, PowerSgdOptions options) {
    return IsCompressed({"t", DType::kFloat32, count, {}, columns}, options);
  };
  EXPECT_TRUE(compressed(100 * 100, 100, {}));
  EXPECT_FALSE(compressed(100 * 100, 0, {}));
  EXPECT_FALSE(compressed(2 * 100, 100, {}));
  EXPECT_FALSE(compressed(8 * 8, 8, {.rank = 4, .min_compression = 1}));
  EXPECT_TRUE(compressed(9 * 9, 9, {.rank = 4, .min_compression = 1}));
}

}  // namespace
}  // namespace pelton
