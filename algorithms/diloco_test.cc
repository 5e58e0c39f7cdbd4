#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/test_ranks.h"
#include "algorithms/test_world.h"
#include "core/actor/sim_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

const std::vector<TensorSpec>& Tensors() {
  static const auto* const tensors = new std::vector<TensorSpec>{{"a", DType::kFloat32, 150, {}},
                                                                 {"b", DType::kFloat32, 140, {}},
                                                                 {"c", DType::kFloat32, 130, {}}};
  return *tensors;
}

TestRanksOptions OptionsOf(int32_t size, AlgorithmOptions options) {
  TestRanksOptions world;
  world.algorithm = "diloco";
  world.options = std::move(options);
  world.host_sizes.assign(static_cast<size_t>(size), 1);
  world.tensors = Tensors();
  world.bucket_size_bytes = 600;  // each is a bucket of its own
  return world;
}

// One tensor's outer optimizer, element by element.
struct Outer {
  std::vector<float> anchor;
  std::vector<float> momentum;

  void Step(const std::vector<Values>& inputs, size_t slot, float rate, float decay) {
    for (size_t i = 0; i < anchor.size(); ++i) {
      volatile float sum = 0;
      for (size_t rank = 0; rank < inputs.size(); ++rank) {
        const float progress = anchor[i] - inputs[rank][slot][i];
        sum = rank == 0 ? progress : sum + progress;
      }
      const float gradient = sum / static_cast<float>(inputs.size());
      volatile float decayed = decay * momentum[i];
      momentum[i] = decayed + gradient;
      volatile float first = rate * gradient;
      volatile float moved = anchor[i] - first;
      volatile float second = static_cast<float>(static_cast<double>(0.7) * 0.9) * momentum[i];
      anchor[i] = moved - second;
    }
  }
};

Values Initial() { return TestWorld::Ramp(Tensors(), 5, 2); }

// The inner steps of every rank since its weights were `values`.
std::vector<Values> Trained(std::vector<Values> values, uint64_t round) {
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const Values step = TestWorld::Ramp(Tensors(), static_cast<int32_t>(rank), round);
    for (size_t slot = 0; slot < step.size(); ++slot) {
      for (size_t i = 0; i < step[slot].size(); ++i) values[rank][slot][i] -= 0.1F * step[slot][i];
    }
  }
  return values;
}

void ExpectEqualsReference(int32_t size, uint64_t fragments, uint64_t disturbing_seed) {
  TestRanksOptions options =
      OptionsOf(size, {{"interval", "12"}, {"fragments", std::to_string(fragments)}});
  options.is_disturbed = disturbing_seed != 0;
  options.seed = disturbing_seed;
  TestWorld world(options);
  world.Prime(Initial());
  std::vector<Outer> outers;
  for (const std::vector<float>& tensor : Initial()) {
    outers.push_back({tensor, std::vector<float>(tensor.size())});
  }
  std::vector<Values> values(static_cast<size_t>(size), Initial());
  for (uint64_t round = 0; round < 6; ++round) {
    std::vector<Values> expected = Trained(values, round);
    values = world.Round(expected);
    for (size_t slot = 0; slot < Tensors().size(); ++slot) {
      const BucketId bucket = world.plan().slot(SlotId(static_cast<int32_t>(slot))).bucket;
      if (static_cast<uint64_t>(bucket.value()) % fragments != round % fragments) continue;
      outers[slot].Step(expected, slot, 0.7F, 0.9F);
      for (Values& rank : expected) rank[slot] = outers[slot].anchor;
    }
    ASSERT_EQ(values, expected) << "round " << round;
  }
}

TEST(DiLoCoTest, TakesTheOuterStepBitByBit) {
  for (int32_t size : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE(size);
    ExpectEqualsReference(size, 1, 0);
  }
}

TEST(DiLoCoTest, StreamsItsFragmentsInTurn) {
  for (int32_t size : {1, 2, 3, 4, 8}) {
    ExpectEqualsReference(size, 2, 0);
    ExpectEqualsReference(size, 3, 0);
    ExpectEqualsReference(size, 4, 0);  // more than there are buckets
  }
}

TEST(DiLoCoTest, HoldsUnderDelaysAndReorderings) {
  ForEachSeed(1000, [](uint64_t seed) {
    ExpectEqualsReference(static_cast<int32_t>(1 + seed % 4), 1 + seed % 3, seed);
  });
}

TEST(DiLoCoTest, SendsAFragmentOfTheBytes) {
  for (int32_t size : {1, 2, 3, 4, 8}) {
    TestWorld world(OptionsOf(size, {{"interval", "12"}, {"fragments", "3"}}));
    world.Prime(Initial());
    uint64_t sent = 0;
    for (const BucketLayout& bucket : world.plan().buckets()) {
      world.Round(std::vector<Values>(static_cast<size_t>(size), Initial()));
      const uint64_t bytes = bucket.flat_count * sizeof(float);
      EXPECT_EQ(world.SentBytes() - sent, 2 * (static_cast<uint64_t>(size) - 1) * bytes);
      sent = world.SentBytes();
    }
  }
}

TEST(DiLoCoTest, SpreadsItsFragmentsOverTheInterval) {
  const auto streaming = *MakeAlgorithm(
      "diloco", {{"interval", "100"}, {"fragments", "4"}, {"delay", "5"}, {"mix", "0.25"}});
  EXPECT_EQ(streaming->schedule().trigger, TriggerKind::kAfterStep);
  EXPECT_EQ(streaming->schedule().first_step, 25);
  EXPECT_EQ(streaming->schedule().interval, 25);
  EXPECT_EQ(streaming->schedule().delay, 5);
  EXPECT_EQ(streaming->schedule().commit.kept, 0.25);
  EXPECT_EQ(streaming->schedule().commit.taken, 0.75);
  EXPECT_FALSE(streaming->RanksAgree());
}

TEST(DiLoCoTest, KeepsNothingOfARanksOwnUnlessItComesLate) {
  EXPECT_EQ((*MakeAlgorithm("diloco", {}))->schedule().commit.kept, 0);
  EXPECT_EQ((*MakeAlgorithm("diloco", {}))->schedule().interval, 100);
  EXPECT_EQ((*MakeAlgorithm("diloco", {{"delay", "1"}}))->schedule().commit.kept, 0.5);
}

TEST(DiLoCoTest, RefusesValuesThatDoNotFit) {
  const auto error = [](const AlgorithmOptions& options) {
    return MakeAlgorithm("diloco", options).status().ToString();
  };
  EXPECT_THAT(error({{"fragments", "3"}}), HasSubstr("3, which does not divide the interval, 100"));
  EXPECT_THAT(error({{"fragments", "4"}, {"delay", "25"}}),
              HasSubstr("25, not below interval / fragments, 25"));
  EXPECT_THAT(error({{"outer_momentum", "1.5"}}), HasSubstr("option outer_momentum is '1.5'"));
  EXPECT_THAT(error({{"outer_learning_rate", "nan"}}), HasSubstr("'nan', not a number"));
  EXPECT_THAT(error({{"alpha", "1"}}), HasSubstr("option 'alpha' is unknown"));
}

}  // namespace
}  // namespace pelton
