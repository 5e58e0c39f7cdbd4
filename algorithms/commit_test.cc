// COMMIT-1, for what stages keep: a round whose communication ends at any operation of any rank
// leaves the state of every registered algorithm bitwise as it was, or, on ranks where it was
// complete, as the whole round makes it. And a tensor that no rank uses leaves its state as it is.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/test_ranks.h"
#include "core/base/check.h"
#include "core/round/model_rounds.h"
#include "core/round/slot_state.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(100);

struct Case {
  std::string algorithm;
  AlgorithmOptions options;
  std::vector<int32_t> host_sizes;

  friend void PrintTo(const Case& one, std::ostream* out) {
    *out << DescribeAlgorithm(one.algorithm, one.options);
  }
};

// Sizes of buckets: for each tensor one, and one for all.
constexpr uint64_t kOfOneTensor = 600;
constexpr uint64_t kOfAll = 10000;

// A rank's state: the bytes of each of its parts, in order.
using State = std::vector<std::string>;

// Threads: one. Owns: the ranks.
class World {
 public:
  World(const Case& one, bool commits_state, uint64_t bucket_size_bytes = kOfOneTensor)
      : ranks_(OptionsOf(one, commits_state, bucket_size_bytes)) {
    for (int32_t rank = 0; rank < ranks_.world_size(); ++rank) {
      Write(rank, 0, 0);  // the same on all ranks
      PELTON_CHECK_OK(ranks_.rounds(rank).Prime(absl::InfiniteFuture()));
    }
  }

  TestRanks& ranks() { return ranks_; }

  // How many operations each rank has launched so far.
  std::vector<uint64_t> OperationCounts() const {
    std::vector<uint64_t> counts;
    for (int32_t rank = 0; rank < ranks_.world_size(); ++rank) {
      counts.push_back(ranks_.OperationCount(rank));
    }
    return counts;
  }

  // A round of all ranks; what each one's ended with. None uses `unused`, which each has elements
  // of all the same.
  std::vector<absl::Status> Round(int32_t round, SlotId unused = SlotId(-1)) {
    std::vector<absl::Status> ended;
    for (int32_t rank = 0; rank < ranks_.world_size(); ++rank) {
      ModelRounds& rounds = ranks_.rounds(rank);
      Write(rank, rank + 1, round);
      for (size_t i = 0; i < rounds.plan().slots().size(); ++i) {
        const SlotId slot(static_cast<int32_t>(i));
        ended.push_back(slot == unused ? rounds.MarkUnused(slot, nullptr) : rounds.MarkReady(slot));
      }
      ended.push_back(rounds.EndRound());
    }
    for (const absl::Status& marked : ended) EXPECT_TRUE(marked.ok()) << marked;
    ended.clear();
    for (int32_t rank = 0; rank < ranks_.world_size(); ++rank) {
      ended.push_back(ranks_.rounds(rank).WaitRound(ranks_.executor().Now() + kPatience));
    }
    return ended;
  }

  // Of one tensor, or of all.
  std::vector<State> States(std::optional<SlotId> slot = std::nullopt) {
    std::vector<State> states;
    for (int32_t rank = 0; rank < ranks_.world_size(); ++rank) {
      State& state = states.emplace_back();
      const std::vector<SlotState> saved = *ranks_.rounds(rank).SaveStates(absl::InfiniteFuture());
      for (const SlotState& part : saved) {
        if (slot.has_value() && part.slot != *slot) continue;
        state.emplace_back(reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size());
      }
    }
    return states;
  }

 private:
  static TestRanksOptions OptionsOf(const Case& one, bool commits_state,
                                    uint64_t bucket_size_bytes) {
    TestRanksOptions options;
    options.algorithm = one.algorithm;
    options.options = one.options;
    options.host_sizes = one.host_sizes;
    options.tensors = {{"a", DType::kFloat32, 150, {}},
                       {"b", DType::kFloat32, 140, {}},
                       {"c", DType::kFloat32, 130, {}}};
    for (TensorSpec& tensor : options.tensors) tensor.columns = 10;  // power_sgd's are matrices
    options.bucket_size_bytes = bucket_size_bytes;
    options.commits_state = commits_state;
    return options;
  }

  void Write(int32_t rank, int32_t seed, int32_t round) {
    ModelRounds& rounds = ranks_.rounds(rank);
    for (size_t i = 0; i < rounds.plan().slots().size(); ++i) {
      std::vector<float> values(rounds.plan().tensors()[i].count);
      for (size_t k = 0; k < values.size(); ++k) {
        const size_t number = k * 7 + i * 5 + static_cast<size_t>(seed * 3 + round * 11);
        values[k] = static_cast<float>(number % 23) * 0.37F - 4;
      }
      std::memcpy(rounds.DataOf(SlotId(static_cast<int32_t>(i))), values.data(),
                  values.size() * sizeof(float));
    }
  }

  TestRanks ranks_;
};

// Their rounds reach other ranks by windows alone, and keep no state:
// backend/averaging_commit_test.cc ends them at each value that they send.
bool UsesWindowsAlone(const std::string& algorithm) {
  return algorithm == "asynchronous_pairs" || algorithm == "asynchronous_push_sum";
}

bool IsEverHierarchical(const std::string& algorithm) {
  const AlgorithmDescription description = *DescriptionOf(algorithm);
  return std::any_of(description.options.begin(), description.options.end(),
                     [](const OptionDescription& one) { return one.name == "hierarchical"; });
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const AlgorithmRegistry::Entry& entry : AlgorithmRegistry::Get().List()) {
    if (entry.name == "power_sgd") continue;
    cases.push_back({entry.name, {}, {1, 1, 1}});
    if (IsEverHierarchical(entry.name)) {
      cases.push_back({entry.name, {{"hierarchical", "true"}}, {2, 1}});
    }
  }
  for (const std::vector<int32_t>& hosts : {std::vector<int32_t>{1, 1, 1}, {2, 1}}) {
    cases.push_back({"power_sgd", {{"rank", "1"}, {"start_round", "1"}}, hosts});
  }
  for (const char* name : {"bytegrad", "local_sgd", "diloco", "low_precision_decentralized"}) {
    AlgorithmOptions options = {{"codec", "one_bit"}, {"error_feedback", "true"}};
    cases.push_back({name, options, {1, 1, 1}});
    options["hierarchical"] = "true";
    cases.push_back({name, options, {2, 1}});
  }
  cases.push_back({"choco_sgd", {{"codec", "one_bit"}}, {1, 1, 1}});
  cases.push_back({"slowmo", {{"base", "ring"}, {"interval", "2"}}, {1, 1, 1}});
  cases.push_back({"gradient_tracking", {{"graph", "star"}, {"push", "true"}}, {1, 1, 1}});
  return cases;
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const AlgorithmOptions& options = info.param.options;
  const bool is_on_a_graph = options.contains("graph") || options.contains("base");
  const char* const kind = options.contains("codec") ? "_one_bit"
                           : is_on_a_graph           ? "_on_a_graph"
                                                     : "";
  return absl::StrCat(info.param.algorithm, kind, "_on_", info.param.host_sizes.size(), "_hosts");
}

// What a round comes to that nothing disturbs. Threads: a value. Owns: its lists.
struct WholeRound {
  std::vector<State> before;
  std::vector<State> after;
  std::vector<uint64_t> operations;  // that each rank launches in it
};

class CommitTest : public ::testing::TestWithParam<Case> {
 protected:
  static void BeginWith(World& world) {
    for (const absl::Status& ended : world.Round(0)) ASSERT_TRUE(ended.ok()) << ended;
  }

  static WholeRound Undisturbed() {
    World world(GetParam(), true);
    BeginWith(world);
    WholeRound whole;
    whole.before = world.States();
    const std::vector<uint64_t> first = world.OperationCounts();
    for (const absl::Status& ended : world.Round(1)) EXPECT_TRUE(ended.ok()) << ended;
    whole.after = world.States();
    whole.operations = world.OperationCounts();
    for (size_t rank = 0; rank < first.size(); ++rank) whole.operations[rank] -= first[rank];
    return whole;
  }

  static void ExpectAllOrNothing(const WholeRound& whole, size_t ending, uint64_t number) {
    SCOPED_TRACE(absl::StrCat("rank ", ending, " ends at its operation ", number));
    World world(GetParam(), true);
    BeginWith(world);
    ASSERT_EQ(world.States(), whole.before);
    world.ranks().EndAtOperation(static_cast<int32_t>(ending), number);
    const std::vector<absl::Status> ended = world.Round(1);
    EXPECT_FALSE(ended[ending].ok()) << "it was not ended";
    const std::vector<State> states = world.States();
    for (size_t rank = 0; rank < states.size(); ++rank) {
      EXPECT_EQ(states[rank], ended[rank].ok() ? whole.after[rank] : whole.before[rank])
          << "rank " << rank << ": " << ended[rank];
    }
  }
};

TEST_P(CommitTest, StateIsThatOfBeforeOrThatOfTheWholeRound) {
  const WholeRound whole = Undisturbed();
  const uint64_t total =
      std::accumulate(whole.operations.begin(), whole.operations.end(), uint64_t{0});
  if (UsesWindowsAlone(GetParam().algorithm)) {
    EXPECT_EQ(total, 0U) << "it is to be ended at its operations, here";
    for (const State& state : whole.after) EXPECT_TRUE(state.empty());
    return;
  }
  ASSERT_GT(total, 0U) << "no rank launches anything to end at";
  for (size_t rank = 0; rank < whole.operations.size(); ++rank) {  // of pairs one may sit out
    for (uint64_t number = 1; number <= whole.operations[rank]; ++number) {
      ExpectAllOrNothing(whole, rank, number);
    }
  }
}

TEST_P(CommitTest, ATensorThatNoRankUsesLeavesItsStateAsItIs) {
  const auto algorithm = *MakeAlgorithm(GetParam().algorithm, GetParam().options);
  if (algorithm->schedule().source == Source::kWeights) return;  // which count in any case
  const SlotId unused(1);
  const SlotId other(0);
  for (const bool commits_state : {false, true}) {
    World world(GetParam(), commits_state, kOfAll);
    BeginWith(world);
    const std::vector<State> before = world.States(unused);
    const std::vector<State> others = world.States(other);
    for (const absl::Status& ended : world.Round(1, unused)) ASSERT_TRUE(ended.ok()) << ended;
    EXPECT_FALSE(world.ranks().rounds(0).ResultOf(unused).used_by_any);
    EXPECT_EQ(world.States(unused), before);
    if (!others.front().empty()) EXPECT_NE(world.States(other), others);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CommitTest, ::testing::ValuesIn(Cases()), NameOf);

TEST(CommitOptionTest, WithoutItAFailedRoundLeavesAPartOfTheState) {
  const Case one = {"diloco", {}, {1, 1}};
  World world(one, false);
  for (const absl::Status& ended : world.Round(0)) ASSERT_TRUE(ended.ok()) << ended;
  const std::vector<State> before = world.States();
  world.ranks().EndAtOperation(0, 3);  // of the third bucket
  EXPECT_FALSE(world.Round(1)[0].ok());
  EXPECT_NE(world.States()[0], before[0]);
}

}  // namespace
}  // namespace pelton
