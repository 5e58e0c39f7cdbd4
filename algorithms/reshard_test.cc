// What every registered algorithm remembers, dealt out to another number of ranks: common parts
// stay bitwise, what error feedback holds back keeps its mean over the ranks, every element of a
// server's part is kept once more, and replicas are those of the weights.
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/test_ranks.h"
#include "algorithms/test_world.h"
#include "core/base/check.h"
#include "core/round/model_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kRounds = 5;
constexpr uint64_t kReplanAfter = 2;
constexpr int32_t kSizes[] = {1, 2, 3, 4, 8};

struct Variant {
  std::string algorithm;
  AlgorithmOptions options;
  bool on_hosts = false;  // two ranks on each
};

std::vector<TensorSpec> Tensors() {
  return {{"bias", DType::kFloat32, 3, {}},
          {"weight", DType::kFloat32, 8 * 12, {}, 12},
          {"head", DType::kFloat32, 41, {}},
          {"wide", DType::kFloat32, 6 * 10, {}, 10}};
}

std::vector<int32_t> HostsOf(int32_t size, bool on_hosts) {
  if (!on_hosts) return std::vector<int32_t>(static_cast<size_t>(size), 1);
  std::vector<int32_t> hosts(static_cast<size_t>(size / 2), 2);
  if (size % 2 == 1) hosts.push_back(1);
  return hosts;
}

TestRanksOptions OptionsOf(const Variant& variant, int32_t size) {
  TestRanksOptions options;
  options.algorithm = variant.algorithm;
  options.options = variant.options;
  options.host_sizes = HostsOf(size, variant.on_hosts);
  options.tensors = Tensors();
  options.bucket_size_bytes = 500;
  return options;
}

// Every registered algorithm as it is, and with whatever makes it remember more.
std::vector<Variant> Variants() {
  const AlgorithmOptions more[] = {{},
                                   {{"codec", "one_bit"}},
                                   {{"codec", "one_bit"}, {"hierarchical", "false"}},
                                   {{"codec", "top_k"}, {"hierarchical", "false"}},
                                   {{"min_compression", "1"}, {"start_round", "1"}},
                                   {{"graph", "star"}, {"push", "true"}},
                                   {{"interval", "1"}, {"global_interval", "2"}}};
  std::vector<Variant> variants;
  for (const auto& entry : AlgorithmRegistry::Get().List()) {
    for (const AlgorithmOptions& options : more) {
      if (!MakeAlgorithm(entry.name, options).ok()) continue;
      variants.push_back({entry.name, options, false});
      if ((*MakeAlgorithm(entry.name, options))->IsHierarchical()) {
        variants.push_back({entry.name, options, true});
      }
    }
  }
  return variants;
}

Values Weights() { return TestWorld::Ramp(Tensors(), 0, 0); }

std::vector<Values> Produced(int32_t size, uint64_t round) {
  std::vector<Values> produced;
  for (int32_t rank = 0; rank < size; ++rank) {
    produced.push_back(TestWorld::Ramp(Tensors(), rank, round));
  }
  return produced;
}

absl::Time Later(TestWorld& world) { return world.executor().Now() + absl::Seconds(100); }

// What all ranks remember after some rounds, in the middle of which the plan changes.
std::vector<ModelState> StatesAfterTraining(const Variant& variant, int32_t size) {
  TestWorld world(OptionsOf(variant, size));
  world.Prime(Weights());
  for (uint64_t round = 1; round <= kRounds; ++round) {
    world.Round(Produced(size, round));
    if (round != kReplanAfter) continue;
    PELTON_CHECK_OK(world.Replan({SlotId(2), SlotId(0), SlotId(3), SlotId(1)}));
  }
  std::vector<ModelState> states;
  for (int32_t rank = 0; rank < size; ++rank) {
    states.push_back(*StateOf(world.rounds(rank), absl::InfiniteFuture()));
  }
  return states;
}

// One element of one buffer: key, tensor, place.
using Place = std::tuple<std::string, std::string, uint64_t>;
// By place, what each rank has there that has something.
using Elements = std::map<Place, std::vector<double>>;

double Element(const TensorState& state, uint64_t index) {
  const std::byte* const data = state.bytes.data() + index * SizeOf(state.dtype);
  if (state.dtype == DType::kFloat64) {
    double value;
    std::memcpy(&value, data, sizeof(value));
    return value;
  }
  PELTON_CHECK(state.dtype == DType::kFloat32) << NameOf(state.dtype);
  float value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

uint64_t CountOf(const std::string& tensor) {
  for (const TensorSpec& spec : Tensors()) {
    if (spec.name == tensor) return spec.count;
  }
  PELTON_CHECK(false) << tensor;
  return 0;
}

Elements ElementsOf(const std::vector<ModelState>& states) {
  Elements elements;
  for (const ModelState& state : states) {
    for (const TensorState& tensor : state.tensors) {
      const uint64_t count = tensor.bytes.size() / SizeOf(tensor.dtype);
      for (uint64_t i = 0; i < count && tensor.begin + i < CountOf(tensor.tensor); ++i) {
        elements[{tensor.key, tensor.tensor, tensor.begin + i}].push_back(Element(tensor, i));
      }
    }
  }
  return elements;
}

double MeanOf(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// What the algorithm's stages say of their buffers, by key.
std::map<std::string, StateScope> ScopesOf(TestWorld& world) {
  std::map<std::string, StateScope> scopes;
  for (int32_t rank = 0; rank < world.size(); ++rank) {
    const std::vector<SlotState> states = *world.rounds(rank).SaveStates(absl::InfiniteFuture());
    for (const SlotState& state : states) scopes[state.key] = state.scope;
  }
  return scopes;
}

void CheckElement(StateScope scope, const std::vector<double>& before,
                  const std::vector<double>& after) {
  if (scope == StateScope::kOwn) {
    const double wanted = MeanOf(before);
    EXPECT_NEAR(MeanOf(after), wanted, 1e-6 * std::abs(wanted) + 1e-12);
    return;
  }
  for (double value : after) EXPECT_EQ(value, before.front());
}

void CheckReplicas(const std::string& key, const Elements& after) {
  const std::vector<TensorSpec> tensors = Tensors();
  for (size_t slot = 0; slot < tensors.size(); ++slot) {
    for (uint64_t i = 0; i < tensors[slot].count; ++i) {
      const auto found = after.find({key, tensors[slot].name, i});
      if (found == after.end()) continue;
      for (double value : found->second) EXPECT_EQ(value, Weights()[slot][i]) << key;
    }
  }
}

std::string NameOfVariant(const Variant& variant) {
  std::string name = variant.algorithm;
  for (const auto& [option, value] : variant.options)
    absl::StrAppend(&name, "_", option, "_", value);
  return absl::StrCat(name, variant.on_hosts ? "_on_hosts" : "");
}

// Threads: one. Owns: the world that goes on.
class Resharded {
 public:
  Resharded(const Variant& variant, int32_t size, const std::vector<ModelState>& states)
      : world_(OptionsOf(variant, size)) {
    world_.Prime(Weights());
    for (int32_t rank = 0; rank < size; ++rank) {
      status_.Update(Reshard(states, world_.rounds(rank), Later(world_)));
    }
  }

  TestWorld& world() { return world_; }
  const absl::Status& status() const { return status_; }
  std::vector<ModelState> states() {
    std::vector<ModelState> states;
    for (int32_t rank = 0; rank < world_.size(); ++rank) {
      states.push_back(*StateOf(world_.rounds(rank), absl::InfiniteFuture()));
    }
    return states;
  }

 private:
  TestWorld world_;
  absl::Status status_;
};

class ReshardTest : public ::testing::TestWithParam<Variant> {};

TEST_P(ReshardTest, KeepsWhatIsCommonAndHeldBack) {
  for (int32_t before_size : kSizes) {
    const std::vector<ModelState> states = StatesAfterTraining(GetParam(), before_size);
    const Elements before = ElementsOf(states);
    for (int32_t size : kSizes) {
      SCOPED_TRACE(absl::StrCat("from ", before_size, " to ", size));
      Resharded resharded(GetParam(), size, states);
      ASSERT_TRUE(resharded.status().ok()) << resharded.status();
      const Elements after = ElementsOf(resharded.states());
      for (const auto& [key, scope] : ScopesOf(resharded.world())) {
        if (scope == StateScope::kReplica) CheckReplicas(key, after);
      }
      const std::map<std::string, StateScope> scopes = ScopesOf(resharded.world());
      TestWorld saved_by(OptionsOf(GetParam(), before_size));
      const std::map<std::string, StateScope> saved_scopes = ScopesOf(saved_by);
      for (const auto& [place, values] : before) {
        const auto scope = scopes.find(std::get<0>(place));
        // One rank may have no neighbours, and no copies of their weights.
        if (scope == scopes.end()) {
          EXPECT_TRUE(saved_scopes.at(std::get<0>(place)) == StateScope::kReplica)
              << std::get<0>(place) << " is lost";
          continue;
        }
        if (scope->second == StateScope::kReplica) continue;
        const auto found = after.find(place);
        ASSERT_TRUE(found != after.end()) << std::get<0>(place) << " of " << std::get<1>(place)
                                          << ", element " << std::get<2>(place) << " is lost";
        CheckElement(scope->second, values, found->second);
        ASSERT_FALSE(HasFailure()) << std::get<0>(place) << " of " << std::get<1>(place)
                                   << ", element " << std::get<2>(place);
      }
    }
  }
}

TEST_P(ReshardTest, RoundsGoOn) {
  for (int32_t before_size : {1, 4}) {
    const std::vector<ModelState> states = StatesAfterTraining(GetParam(), before_size);
    for (int32_t size : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat("from ", before_size, " to ", size));
      Resharded resharded(GetParam(), size, states);
      ASSERT_TRUE(resharded.status().ok()) << resharded.status();
      const bool agree = (*MakeAlgorithm(GetParam().algorithm, GetParam().options))->RanksAgree();
      for (uint64_t round = 1; round <= 3; ++round) {
        const std::vector<Values> results = resharded.world().Round(Produced(size, round));
        for (const Values& values : results) {
          EXPECT_TRUE(!agree || values == results.front()) << "round " << round;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReshardTest, ::testing::ValuesIn(Variants()), [](const auto& info) {
  std::string name = NameOfVariant(info.param);
  for (char& letter : name)
    letter = std::isalnum(static_cast<unsigned char>(letter)) ? letter : '_';
  return name;
});

// What every rank has whole is not gathered when the plan changes, as the only one of a rank is.
TEST(ReshardAloneTest, NoRankKeepsTheOnlyOneOfAnything) {
  for (const Variant& variant : Variants()) {
    TestWorld world(OptionsOf(variant, 1));
    for (const auto& [key, scope] : ScopesOf(world)) {
      EXPECT_TRUE(scope != StateScope::kShared) << NameOfVariant(variant) << ": " << key;
    }
  }
}

// By tensor and element: what ranks or hosts hold back of a mean, and the server's part.
std::map<std::pair<std::string, uint64_t>, double> HeldBack(const std::vector<ModelState>& states) {
  std::map<std::pair<std::string, uint64_t>, double> held;
  for (const auto& [place, values] : ElementsOf(states)) {
    held[{std::get<1>(place), std::get<2>(place)}] += MeanOf(values);
  }
  return held;
}

void ExpectArrivesOnce(const Variant& before, int32_t before_size, const Variant& after,
                       int32_t size) {
  const std::vector<ModelState> states = StatesAfterTraining(before, before_size);
  Resharded resharded(after, size, states);
  ASSERT_TRUE(resharded.status().ok()) << resharded.status();
  const std::vector<TensorSpec> tensors = Tensors();
  Values zeros;
  for (const TensorSpec& tensor : tensors) zeros.emplace_back(tensor.count);
  const std::vector<Values> nothing(static_cast<size_t>(size), zeros);
  const Values first = resharded.world().Round(nothing).front();
  const Values second = resharded.world().Round(nothing).front();
  const auto owed = HeldBack(states);
  const auto left = HeldBack(resharded.states());
  double total = 0;
  for (size_t slot = 0; slot < tensors.size(); ++slot) {
    for (uint64_t i = 0; i < tensors[slot].count; ++i) {
      const double wanted = owed.at({tensors[slot].name, i});
      const double arrived = static_cast<double>(first[slot][i]) + second[slot][i];
      const double kept = left.at({tensors[slot].name, i});
      ASSERT_NEAR(arrived + kept, wanted, 1e-4 * (1 + std::abs(wanted)));
      total += std::abs(wanted);
    }
  }
  EXPECT_GT(total, 1) << "nothing was held back: the case was never met";
}

TEST(ReshardHeldBackTest, ArrivesOnceWhateverTheHostsAre) {
  const Variant flat{"bytegrad", {{"codec", "one_bit"}, {"hierarchical", "false"}}};
  const Variant alike{"bytegrad", {{"codec", "one_bit"}}};  // a rank on each host
  const Variant in_twos{"bytegrad", {{"codec", "one_bit"}}, /*on_hosts=*/true};
  ExpectArrivesOnce(flat, 3, flat, 1);
  ExpectArrivesOnce(flat, 3, flat, 2);
  ExpectArrivesOnce(in_twos, 4, in_twos, 2);  // one host
  const Variant sums{"bytegrad", {{"codec", "one_bit"}, {"average", "false"}}, /*on_hosts=*/true};
  ExpectArrivesOnce(sums, 4, sums, 2);
  ExpectArrivesOnce(alike, 3, in_twos, 3);  // hosts of two and of one
  ExpectArrivesOnce(in_twos, 4, in_twos, 3);
  ExpectArrivesOnce(in_twos, 3, alike, 3);
  ExpectArrivesOnce(in_twos, 3, in_twos, 4);
}

// Threads: one. Owns: nothing.
class ReshardRefusesTest : public ::testing::Test {
 protected:
  static absl::Status StatusOf(const Variant& variant, const std::vector<ModelState>& states) {
    return Resharded(variant, 3, states).status();
  }
  static TensorState& First(ModelState& state, const std::string& key) {
    for (TensorState& tensor : state.tensors) {
      if (tensor.key == key) return tensor;
    }
    PELTON_CHECK(false) << key;
    return state.tensors.front();
  }
  const Variant diloco_{"diloco", {}};
  const Variant bytegrad_{"bytegrad", {{"codec", "one_bit"}, {"hierarchical", "false"}}};
};

TEST_F(ReshardRefusesTest, RanksWhoseCommonPartsDiffer) {
  std::vector<ModelState> states = StatesAfterTraining(diloco_, 2);
  First(states[1], "progress/anchor").bytes[0] ^= std::byte{1};
  const absl::Status status = StatusOf(diloco_, states);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("rank 1's differs from rank 0's"));
  EXPECT_THAT(status.message(), HasSubstr("progress/anchor"));
}

TEST_F(ReshardRefusesTest, ServersPartsWithGaps) {
  std::vector<ModelState> states = StatesAfterTraining(bytegrad_, 2);
  states.pop_back();
  EXPECT_THAT(StatusOf(bytegrad_, states).message(), HasSubstr("no rank's has element"));
}

TEST_F(ReshardRefusesTest, PartsAndOtherDtypes) {
  std::vector<ModelState> states = StatesAfterTraining(bytegrad_, 2);
  TensorState& residual = First(states[0], "compressed exchange/residual");
  std::vector<std::byte> bytes = residual.bytes;
  residual.bytes.resize(4);
  EXPECT_THAT(StatusOf(bytegrad_, states).message(), HasSubstr("a part of it only"));
  residual.bytes = std::move(bytes);
  residual.dtype = DType::kFloat64;
  EXPECT_THAT(StatusOf(bytegrad_, states).message(), HasSubstr("rank 0's is of float64"));
}

TEST_F(ReshardRefusesTest, TensorsOfAnotherModel) {
  std::vector<ModelState> states = StatesAfterTraining(bytegrad_, 2);
  states[1].tensors.front().tensor = "other";
  EXPECT_THAT(StatusOf(bytegrad_, states).message(), HasSubstr("the model has no tensor 'other'"));
}

}  // namespace
}  // namespace pelton
