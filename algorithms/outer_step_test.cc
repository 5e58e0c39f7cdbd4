// What ranks do that come together by an outer step whose messages are encoded, against one
// process: LocalSGD and DiLoCo with every kind of codec.
#include "algorithms/stage/outer_step.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/test_compressed_reference.h"
#include "algorithms/test_ranks.h"
#include "algorithms/test_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kRounds = 4;

// One run, with what its reference needs to know.
struct Case {
  std::string algorithm;
  std::string codec;
  std::vector<int32_t> host_sizes;
  bool is_hierarchical = false;
  bool error_feedback = false;

  float rate() const { return algorithm == "diloco" ? 0.7F : 1.0F; }
  float momentum() const { return algorithm == "diloco" ? 0.9F : 0.0F; }
  AlgorithmOptions options() const {
    return {{"interval", "4"},
            {"codec", codec},
            {"hierarchical", is_hierarchical ? "true" : "false"},
            {"error_feedback", error_feedback ? "true" : "false"}};
  }
};

const std::vector<TensorSpec>& Tensors() {
  static const auto* const tensors = new std::vector<TensorSpec>{{"a", DType::kFloat32, 150, {}},
                                                                 {"b", DType::kFloat32, 33000, {}}};
  return *tensors;
}

// The outer optimizer of one tensor that has a bucket of its own.
struct Outer {
  std::vector<float> anchor;
  std::vector<float> velocity;
  std::unique_ptr<CompressedReference> messages;

  // `weights`: by rank.
  void Step(const std::vector<const std::vector<float>*>& weights, float rate, float momentum) {
    std::vector<std::vector<std::byte>> progress;
    for (const std::vector<float>* mine : weights) {
      std::vector<float> floats(anchor.size());
      for (size_t i = 0; i < mine->size(); ++i) floats[i] = anchor[i] - (*mine)[i];
      const auto* const bytes = reinterpret_cast<const std::byte*>(floats.data());
      progress.emplace_back(bytes, bytes + floats.size() * sizeof(float));
    }
    const std::vector<std::byte> mean = messages->Round(progress);
    const auto factor = static_cast<float>(static_cast<double>(momentum == 0 ? 0 : 0.7) * 0.9);
    for (size_t i = 0; i < anchor.size(); ++i) {
      float gradient;
      std::memcpy(&gradient, mean.data() + i * sizeof(float), sizeof(float));
      volatile float decayed = momentum * velocity[i];
      velocity[i] = decayed + gradient;
      volatile float first = rate * gradient;
      volatile float moved = anchor[i] - first;
      volatile float second = factor * velocity[i];
      anchor[i] = momentum == 0 ? moved : moved - second;
    }
  }
};

class OuterStepTest : public ::testing::TestWithParam<Case> {
 protected:
  OuterStepTest() : world_(OptionsOf(GetParam())) { world_.Prime(Initial()); }

  static TestRanksOptions OptionsOf(const Case& one) {
    TestRanksOptions options;
    options.algorithm = one.algorithm;
    options.options = one.options();
    options.host_sizes = one.host_sizes;
    options.tensors = Tensors();
    options.bucket_size_bytes = 600;  // each is a bucket of its own
    options.is_disturbed = true;
    return options;
  }
  static Values Initial() { return TestWorld::Ramp(Tensors(), 5, 2); }

  // The elements of the bucket of a slot that are encoded.
  uint64_t CountOf(size_t slot) {
    const SlotLayout& layout = world_.plan().slot(SlotId(static_cast<int32_t>(slot)));
    return world_.plan().bucket(layout.bucket).content_count;
  }

  std::vector<Outer> Outers() {
    CompressedReferenceOptions reference;
    reference.codec = GetParam().codec;
    reference.error_feedback = GetParam().error_feedback;
    reference.part_sizes = GetParam().is_hierarchical
                               ? GetParam().host_sizes
                               : std::vector<int32_t>(static_cast<size_t>(world_.size()), 1);
    std::vector<Outer> outers;
    for (size_t slot = 0; slot < Tensors().size(); ++slot) {
      Outer& outer = outers.emplace_back();
      outer.anchor = Initial()[slot];
      outer.messages = std::make_unique<CompressedReference>(reference, CountOf(slot));
      outer.anchor.resize(CountOf(slot));
      outer.velocity.resize(CountOf(slot));
    }
    return outers;
  }

  // What each rank has come to by itself since all held `weights`.
  std::vector<Values> Trained(const std::vector<Values>& weights, uint64_t round) {
    std::vector<Values> trained = weights;
    for (size_t rank = 0; rank < trained.size(); ++rank) {
      const Values step = TestWorld::Ramp(Tensors(), static_cast<int32_t>(rank), round);
      for (size_t slot = 0; slot < step.size(); ++slot) {
        for (size_t i = 0; i < step[slot].size(); ++i)
          trained[rank][slot][i] -= 0.1F * step[slot][i];
      }
    }
    return trained;
  }

  TestWorld world_;
};

class FlatOuterStepTest : public OuterStepTest {};

TEST_P(OuterStepTest, EqualsOneProcessBitByBit) {
  std::vector<Outer> outers = Outers();
  std::vector<Values> values(static_cast<size_t>(world_.size()), Initial());
  for (uint64_t round = 0; round < kRounds; ++round) {
    const std::vector<Values> inputs = Trained(values, round);
    values = world_.Round(inputs);
    for (size_t slot = 0; slot < outers.size(); ++slot) {
      std::vector<const std::vector<float>*> weights;
      for (const Values& rank : inputs) weights.push_back(&rank[slot]);
      outers[slot].Step(weights, GetParam().rate(), GetParam().momentum());
      const std::vector<float> expected(
          outers[slot].anchor.begin(),
          outers[slot].anchor.begin() + static_cast<ptrdiff_t>(Tensors()[slot].count));
      for (size_t rank = 0; rank < values.size(); ++rank) {
        ASSERT_EQ(values[rank][slot], expected) << "round " << round << ", rank " << rank;
      }
    }
  }
}

TEST_P(FlatOuterStepTest, SendsFewerBytesThanFullPrecision) {
  const uint64_t before = world_.SentBytes();
  world_.Round(std::vector<Values>(static_cast<size_t>(world_.size()), Initial()));
  AlgorithmOptions plain = GetParam().options();
  plain["codec"] = "none";
  plain.erase("error_feedback");
  TestRanksOptions options = OptionsOf(GetParam());
  options.options = plain;
  TestWorld full(options);
  full.Prime(Initial());
  full.Round(std::vector<Values>(static_cast<size_t>(full.size()), Initial()));
  EXPECT_LT(world_.SentBytes() - before, full.SentBytes() * 6 / 10);
}

std::vector<Case> FlatCases() {
  std::vector<Case> cases;
  for (const char* algorithm : {"local_sgd", "diloco"}) {
    for (const char* codec : {"min_max_uint8", "bfloat16", "block_int4", "one_bit", "top_k"}) {
      for (const bool error_feedback : {false, true}) {
        cases.push_back({algorithm, codec, {1, 1}, false, error_feedback});
        cases.push_back({algorithm, codec, {1, 1, 1}, false, error_feedback});
      }
    }
    cases.push_back({algorithm, "block_uint8", {1, 1, 1, 1, 1, 1, 1, 1}, false, true});
  }
  return cases;
}

std::vector<Case> Cases() {
  std::vector<Case> cases = FlatCases();
  for (const char* algorithm : {"local_sgd", "diloco"}) {
    cases.push_back({algorithm, "block_int4", {2, 2}, true, true});
    cases.push_back({algorithm, "min_max_uint8", {1, 3}, true, false});
  }
  return cases;
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const Case& one = info.param;
  std::string hosts;
  for (const int32_t size : one.host_sizes) absl::StrAppend(&hosts, size);
  return absl::StrCat(one.algorithm, "_", one.codec, "_", hosts,
                      one.is_hierarchical ? "_hierarchical" : "",
                      one.error_feedback ? "_feedback" : "");
}

INSTANTIATE_TEST_SUITE_P(All, OuterStepTest, ::testing::ValuesIn(Cases()), NameOf);
INSTANTIATE_TEST_SUITE_P(All, FlatOuterStepTest, ::testing::ValuesIn(FlatCases()), NameOf);

TEST(OuterStepOptionsTest, AloneNothingIsEncoded) {
  for (const char* algorithm : {"local_sgd", "diloco"}) {
    Values results[2];
    for (const bool encodes : {false, true}) {
      TestRanksOptions options;
      options.algorithm = algorithm;
      options.options = {{"codec", encodes ? "one_bit" : "none"}};
      options.tensors = Tensors();
      TestWorld world(options);
      world.Prime(TestWorld::Ramp(Tensors(), 1, 1));
      results[encodes ? 1 : 0] = world.Round({TestWorld::Ramp(Tensors(), 2, 2)})[0];
    }
    // The mean of one is the weights, or the anchor less how far it is from them, rounded.
    for (size_t slot = 0; slot < Tensors().size(); ++slot) {
      for (size_t i = 0; i < results[0][slot].size(); ++i) {
        ASSERT_NEAR(results[0][slot][i], results[1][slot][i], 1e-4) << algorithm << " " << i;
      }
    }
  }
}

TEST(OuterStepOptionsTest, RefusesWhatDoesNotFit) {
  const auto error = [](const std::string& algorithm, const AlgorithmOptions& options) {
    return MakeAlgorithm(algorithm, options).status().ToString();
  };
  EXPECT_THAT(error("diloco", {{"codec", "zip"}}),
              HasSubstr("option codec is 'zip', not one of none"));
  EXPECT_THAT(error("diloco", {{"codec.block", "64"}}),
              HasSubstr("option codec.block is given, but option codec is 'none'"));
  EXPECT_THAT(error("local_sgd", {{"error_feedback", "true"}}),
              HasSubstr("option error_feedback is given, but option codec is 'none'"));
  EXPECT_THAT(error("bytegrad", {{"codec", "none"}}),
              HasSubstr("option codec is 'none', not one of"));
  EXPECT_THAT(error("gradient_allreduce", {{"codec", "top_k"}}), HasSubstr("bytegrad"));
  EXPECT_THAT(error("decentralized", {{"codec", "top_k"}}),
              HasSubstr("low_precision_decentralized"));
  EXPECT_THAT(error("async_model_average", {{"codec", "top_k"}}), HasSubstr("stop together"));
  EXPECT_THAT(error("power_sgd", {{"codec", "top_k"}}), HasSubstr("low rank"));
}

}  // namespace
}  // namespace pelton
