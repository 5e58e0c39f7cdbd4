#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/test_ranks.h"
#include "algorithms/test_world.h"
#include "comm/topology/matching.h"
#include "comm/topology/peer_source.h"
#include "core/actor/sim_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kRounds = 5;

const std::vector<TensorSpec>& Tensors() {
  static const auto* const tensors =
      new std::vector<TensorSpec>{{"weight", DType::kFloat32, 131, {}},
                                  {"bias", DType::kFloat32, 3, {}},
                                  {"empty", DType::kFloat32, 0, {}},
                                  {"head", DType::kFloat32, 70, {}}};
  return *tensors;
}

TestRanksOptions OptionsOf(std::vector<int32_t> host_sizes, AlgorithmOptions algorithm_options) {
  TestRanksOptions options;
  options.algorithm = "decentralized";
  options.options = std::move(algorithm_options);
  options.host_sizes = std::move(host_sizes);
  options.tensors = Tensors();
  options.bucket_size_bytes = 600;
  return options;
}

std::vector<Values> Inputs(int32_t size, uint64_t round) {
  std::vector<Values> inputs;
  for (int32_t rank = 0; rank < size; ++rank) {
    inputs.push_back(TestWorld::Ramp(Tensors(), rank, round));
  }
  return inputs;
}

void AddTo(Values& sum, const Values& term) {
  for (size_t slot = 0; slot < sum.size(); ++slot) {
    for (size_t i = 0; i < sum[slot].size(); ++i) sum[slot][i] += term[slot][i];
  }
}

void Divide(Values& values, int32_t divisor) {
  for (std::vector<float>& tensor : values) {
    for (float& element : tensor) element /= static_cast<float>(divisor);
  }
}

Values SumOf(const std::vector<Values>& values) {
  Values sum = values.front();
  for (size_t i = 1; i < values.size(); ++i) AddTo(sum, values[i]);
  return sum;
}

std::vector<Values> MeanOnAll(const std::vector<Values>& inputs) {
  Values mean = SumOf(inputs);
  Divide(mean, static_cast<int32_t>(inputs.size()));
  return std::vector<Values>(inputs.size(), mean);
}

// By host: the place of its peer.
Matching ShiftOneMatching(size_t count, uint64_t step) {
  Matching matching;
  const WorldSize size(static_cast<int32_t>(count));
  for (int32_t host = 0; host < size.value(); ++host) {
    matching.push_back(ShiftOnePeer({Rank(host), size}, step).value());
  }
  return matching;
}

// The head of decentralized.cc in plain loops; hosts of one rank each are the flat case.
std::vector<Values> PairsReference(const std::vector<Values>& inputs,
                                   const std::vector<int32_t>& host_sizes,
                                   const Matching& matching) {
  std::vector<Values> sums;
  size_t first = 0;
  for (int32_t size : host_sizes) {
    const auto begin = inputs.begin() + static_cast<std::ptrdiff_t>(first);
    sums.push_back(SumOf({begin, begin + size}));
    first += static_cast<size_t>(size);
  }
  std::vector<Values> results;
  for (size_t host = 0; host < host_sizes.size(); ++host) {
    const auto peer = static_cast<size_t>(matching[host]);
    Values mean = sums[std::min(host, peer)];
    int32_t divisor = host_sizes[host];
    if (peer != host) {
      AddTo(mean, sums[std::max(host, peer)]);
      divisor += host_sizes[peer];
    }
    Divide(mean, divisor);
    results.insert(results.end(), static_cast<size_t>(host_sizes[host]), mean);
  }
  return results;
}

std::vector<Values> ShiftOneReference(const std::vector<Values>& inputs,
                                      const std::vector<int32_t>& host_sizes, uint64_t step) {
  return PairsReference(inputs, host_sizes, ShiftOneMatching(host_sizes.size(), step));
}

// Runs rounds whose inputs follow from the results, as an optimizer's steps would make them.
template <typename Reference>
void ExpectRoundsAre(TestWorld& world, Reference reference) {
  std::vector<Values> inputs = Inputs(world.size(), 0);
  for (uint64_t round = 0; round < kRounds; ++round) {
    const std::vector<Values> results = world.Round(inputs);
    ASSERT_EQ(results, reference(inputs, round)) << "round " << round;
    for (int32_t rank = 0; rank < world.size(); ++rank) {
      inputs[static_cast<size_t>(rank)] = results[static_cast<size_t>(rank)];
      AddTo(inputs[static_cast<size_t>(rank)], TestWorld::Ramp(Tensors(), rank, round));
    }
  }
}

double MeanOf(const std::vector<Values>& values) {
  double sum = 0;
  for (const Values& rank : values) {
    for (const std::vector<float>& tensor : rank) {
      sum = std::accumulate(tensor.begin(), tensor.end(), sum);
    }
  }
  return sum / static_cast<double>(values.size());
}

TEST(DecentralizedTest, AveragesOverAllRanks) {
  for (int32_t size : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE(size);
    TestWorld world(OptionsOf(std::vector<int32_t>(static_cast<size_t>(size), 1), {}));
    ExpectRoundsAre(world, [](const auto& inputs, uint64_t) { return MeanOnAll(inputs); });
  }
}

TEST(DecentralizedTest, AveragesWithOnePeerAfterAnother) {
  for (int32_t size : {1, 2, 3, 4, 5, 8}) {
    SCOPED_TRACE(size);
    const std::vector<int32_t> hosts(static_cast<size_t>(size), 1);
    TestWorld world(OptionsOf(hosts, {{"peer_selection_mode", "shift_one"}}));
    ExpectRoundsAre(world, [&](const auto& inputs, uint64_t step) {
      return ShiftOneReference(inputs, hosts, step);
    });
  }
}

TEST(DecentralizedTest, PairsHostsByTheirSums) {
  const std::vector<std::vector<int32_t>> worlds = {{1},    {3},       {2, 2},
                                                    {3, 1}, {1, 2, 3}, {2, 1, 4, 1}};
  for (const std::vector<int32_t>& hosts : worlds) {
    TestWorld world(
        OptionsOf(hosts, {{"hierarchical", "true"}, {"peer_selection_mode", "shift_one"}}));
    ExpectRoundsAre(world, [&](const auto& inputs, uint64_t step) {
      return ShiftOneReference(inputs, hosts, step);
    });
  }
}

TEST(DecentralizedTest, AveragesOverAllRanksInGlobalRounds) {
  const std::vector<std::vector<int32_t>> worlds = {{1}, {1, 1, 1}, {1, 1, 1, 1}, {2, 1}};
  for (const std::vector<int32_t>& hosts : worlds) {
    const bool is_flat = hosts != std::vector<int32_t>{2, 1};
    TestWorld world(OptionsOf(hosts, {{"hierarchical", is_flat ? "false" : "true"},
                                      {"peer_selection_mode", "shift_one"},
                                      {"global_interval", "2"}}));
    ExpectRoundsAre(world, [&](const auto& inputs, uint64_t step) {
      return step % 2 == 1 ? MeanOnAll(inputs) : ShiftOneReference(inputs, hosts, step);
    });
  }
}

TEST(DecentralizedTest, KeepsTheMeanOverRanksOfUnequalHosts) {
  TestWorld world(
      OptionsOf({2, 1, 4, 1}, {{"hierarchical", "true"}, {"peer_selection_mode", "shift_one"}}));
  std::vector<Values> values = Inputs(world.size(), 0);
  const double mean = MeanOf(values);
  for (uint64_t round = 0; round < 8; ++round) {
    values = world.Round(values);
    EXPECT_NEAR(MeanOf(values), mean, 1e-3 * std::abs(mean)) << "round " << round;
  }
}

// The mean over hosts' means, as Bagua takes it, would be another one.
TEST(DecentralizedTest, MeansRanksNotHostsWhereAllAreHierarchical) {
  TestWorld world(OptionsOf({3, 1}, {{"hierarchical", "true"}}));
  ExpectRoundsAre(world, [](const auto& inputs, uint64_t) { return MeanOnAll(inputs); });
}

TEST(DecentralizedTest, SendsTheBytesOfItsFormula) {
  for (int32_t size : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE(size);
    const std::vector<int32_t> hosts(static_cast<size_t>(size), 1);
    const auto ranks = static_cast<uint64_t>(size);
    TestWorld all(OptionsOf(hosts, {}));
    all.Round(Inputs(size, 0));
    EXPECT_EQ(all.SentBytes(), 2 * (ranks - 1) * all.BucketBytes());

    TestWorld pairs(OptionsOf(hosts, {{"peer_selection_mode", "shift_one"}}));
    pairs.Round(Inputs(size, 0));
    EXPECT_EQ(pairs.SentBytes(), ranks / 2 * 2 * pairs.BucketBytes());
  }
}

TEST(DecentralizedTest, HoldsUnderDelaysAndReorderings) {
  ForEachSeed(1000, [](uint64_t seed) {
    const bool in_pairs = seed % 3 != 0;
    const bool hierarchical = seed % 2 == 0;
    std::vector<int32_t> hosts(1 + seed % 4, 1);
    if (hierarchical) hosts[seed % hosts.size()] = 1 + static_cast<int32_t>(seed / 4 % 3);
    AlgorithmOptions algorithm = {{"hierarchical", hierarchical ? "true" : "false"},
                                  {"peer_selection_mode", in_pairs ? "shift_one" : "all"}};
    TestRanksOptions options = OptionsOf(hosts, algorithm);
    options.seed = seed;
    options.is_disturbed = true;
    TestWorld world(options);
    std::vector<Values> values = Inputs(world.size(), seed);
    for (uint64_t step = 0; step < 3; ++step) {
      const std::vector<Values> expected =
          in_pairs ? ShiftOneReference(values, hosts, step) : MeanOnAll(values);
      values = world.Round(values);
      ASSERT_EQ(values, expected) << "step " << step;
    }
  });
}

// What a rank hears of one matching after another, but for the steps it lacks.
// Threads: one. Owns: the answers.
class ScriptedPeers final : public PeerSource {
 public:
  ScriptedPeers(int32_t place, std::vector<Matching> matchings, std::vector<uint64_t> lacking)
      : place_(place), matchings_(std::move(matchings)), lacking_(std::move(lacking)) {}

  std::optional<Rank> PeerAt(uint64_t step) override {
    EXPECT_EQ(step + 1, prefetched_) << "the answer was not asked for a round ahead";
    if (std::find(lacking_.begin(), lacking_.end(), step) != lacking_.end()) return std::nullopt;
    return Rank(matchings_[step][static_cast<size_t>(place_)]);
  }
  void Prefetch(uint64_t step) override { prefetched_ = step + 1; }

 private:
  const int32_t place_;
  const std::vector<Matching> matchings_;
  const std::vector<uint64_t> lacking_;
  uint64_t prefetched_ = 0;  // steps
};

// Every third round is global where `has_global_rounds`.
void ExpectFollowsChosenPeers(const std::vector<int32_t>& hosts, bool hierarchical, uint64_t seed,
                              bool has_global_rounds) {
  std::vector<int32_t> places(hosts.size());
  std::iota(places.begin(), places.end(), 0);
  std::vector<Matching> matchings;
  for (uint64_t step = 0; step < kRounds; ++step) {
    matchings.push_back(MatchAtRandom(places, hosts.size(), seed + step));
  }
  std::vector<std::unique_ptr<ScriptedPeers>> scripts;
  TestRanksOptions options = OptionsOf(hosts, {{"peer_selection_mode", "random_matching"},
                                               {"hierarchical", hierarchical ? "true" : "false"},
                                               {"global_interval", has_global_rounds ? "3" : "0"}});
  for (int32_t place : places) {
    // One rank's answer is lost in step 1, another's in step 3.
    const bool first = static_cast<size_t>(place) == seed % hosts.size();
    const bool last = static_cast<size_t>(place) + 1 == hosts.size();
    std::vector<uint64_t> lacking;
    if (first) lacking.push_back(1);
    if (last) lacking.push_back(3);
    scripts.push_back(std::make_unique<ScriptedPeers>(place, matchings, lacking));
    options.peers.push_back(scripts.back().get());
  }
  options.seed = seed;
  options.is_disturbed = true;
  TestWorld world(options);
  std::vector<Values> values = Inputs(world.size(), seed);
  for (uint64_t step = 0; step < kRounds; ++step) {
    const bool is_lost = step % 2 == 1;
    const bool is_global = has_global_rounds && step % 3 == 2;
    const std::vector<Values> expected =
        is_global
            ? MeanOnAll(values)
            : PairsReference(values, hosts,
                             is_lost ? ShiftOneMatching(hosts.size(), step) : matchings[step]);
    values = world.Round(values);
    ASSERT_EQ(values, expected) << "step " << step;
  }
}

TEST(DecentralizedTest, FollowsChosenPeersAndFallsBackOnBothEndsWhereAnAnswerIsLost) {
  ForEachSeed(200, [](uint64_t seed) {
    ExpectFollowsChosenPeers(std::vector<int32_t>(1 + seed % 6, 1), false, seed, false);
    ExpectFollowsChosenPeers({2, 1, 3}, true, seed, false);
  });
}

TEST(DecentralizedTest, FollowsChosenPeersAfterGlobalRounds) {
  ForEachSeed(50, [](uint64_t seed) {
    ExpectFollowsChosenPeers(std::vector<int32_t>(1 + seed % 6, 1), false, seed, true);
    ExpectFollowsChosenPeers({2, 1, 3}, true, seed, true);
  });
}

TEST(DecentralizedTest, NamesThePolicyOfItsMode) {
  const auto policy = [](const std::string& mode) {
    return (*MakeAlgorithm("decentralized", {{"peer_selection_mode", mode}}))->peer_policy();
  };
  EXPECT_EQ(policy("shift_one"), std::nullopt);
  EXPECT_EQ(policy("latency_aware"), PeerPolicy::kLatencyAware);
  EXPECT_EQ(policy("avoid_stragglers"), PeerPolicy::kAvoidStragglers);
}

TEST(DecentralizedTest, SaysWhenItsRoundsAre) {
  const auto algorithm = *MakeAlgorithm("decentralized", {{"communication_interval", "4"}});
  EXPECT_EQ(algorithm->schedule().trigger, TriggerKind::kInForward);
  EXPECT_EQ(algorithm->schedule().first_step, 1);
  EXPECT_EQ(algorithm->schedule().interval, 4);
  EXPECT_EQ(algorithm->schedule().commit.kept, 0);
  EXPECT_EQ(algorithm->schedule().commit.taken, 1);
}

TEST(DecentralizedTest, HasNoGlobalRoundsWhereRanksAreNotAtTheSameRound) {
  const absl::Status status =
      MakeAlgorithm("decentralized",
                    {{"peer_selection_mode", "avoid_stragglers"}, {"global_interval", "4"}})
          .status();
  EXPECT_THAT(status.ToString(), HasSubstr("ranks are not at the same round"));
}

TEST(DecentralizedTest, RefusesValuesThatDoNotFit) {
  const auto error = [](const std::string& name, const std::string& value) {
    return MakeAlgorithm("decentralized", {{name, value}}).status().ToString();
  };
  EXPECT_THAT(error("communication_interval", "0"),
              HasSubstr("option communication_interval is '0'"));
  EXPECT_THAT(
      error("peer_selection_mode", "ring"),
      HasSubstr(
          "option peer_selection_mode is 'ring', not one of all, shift_one, random_matching"));
  EXPECT_THAT(error("interval", "1"), HasSubstr("option 'interval' is unknown"));
}

TEST(DecentralizedTest, NeedsTheTiersOfItsHosts) {
  SimFabric fabric(WorldSize(1));
  const auto communicators = *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(1)));
  const auto algorithm = *MakeAlgorithm(
      "decentralized", {{"hierarchical", "true"}, {"peer_selection_mode", "shift_one"}});
  EXPECT_THAT(algorithm->StagesFor({}, Tiers::Of(*communicators[0])).status().ToString(),
              HasSubstr("no tiers are open"));
}

}  // namespace
}  // namespace pelton
