// Ten thousand ranks in one process: neighbour averages do what the graphs' matrices do.
#include "benchmarks/graphs/consensus_simulation.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "comm/graph/graph_sequence.h"
#include "core/base/sanitizer.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// What rounding leaves of a mean of numbers about 1, as a share of their distance from it.
constexpr double kExact = 1e-12;

// Under a sanitizer as many ranks, with less in them.
ConsensusOptions Large(std::string graph, int32_t ranks, uint64_t rounds, uint64_t count) {
  ConsensusOptions options;
  options.graph = std::move(graph);
  options.ranks = WorldSize(ranks);
  options.rounds = kSanitized ? std::min<uint64_t>(rounds, 14) : rounds;
  options.count = kSanitized ? 2 : count;
  options.link = {absl::Microseconds(50), 1.25e9};
  return options;
}

void ExpectAsMatrices(const ConsensusResult& result) {
  for (size_t i = 0; i < result.rounds.size(); ++i) {
    const ConsensusRound& round = result.rounds[i];
    ASSERT_NEAR(round.error, round.expected, 1e-6 * round.expected + kExact) << "round " << i + 1;
  }
}

TEST(ConsensusTest, ARingOfTenThousandDoesWhatItsMatrixDoes) {
  const ConsensusOptions options = Large("ring", 10'000, 100, 1000);
  const absl::StatusOr<ConsensusResult> result = SimulateConsensus(options, true);
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectAsMatrices(*result);
  const uint64_t messages = 2 * 10'000 * options.rounds;
  EXPECT_EQ(result->sent_bytes, messages * options.count * sizeof(double));
  // Two messages leave at a time, on links of their own.
  const absl::Duration round =
      options.link.latency + absl::Seconds(static_cast<double>(options.count * sizeof(double)) /
                                           options.link.bytes_per_second);
  EXPECT_NEAR(absl::ToDoubleSeconds(result->rounds.back().time),
              absl::ToDoubleSeconds(round) * static_cast<double>(options.rounds), 1e-6);
}

TEST(ConsensusTest, OnePeerExponentialIsExactAfterThirteenRoundsOf8192) {
  const ConsensusOptions options = Large("one_peer_exponential", 8192, 13, 100);
  const absl::StatusOr<ConsensusResult> result = SimulateConsensus(options, true);
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectAsMatrices(*result);
  EXPECT_GT(result->rounds[11].error, 1e-3);
  EXPECT_LT(result->rounds[12].error, kExact);
}

TEST(ConsensusTest, BaseTwoIsExactAfterAPeriodOfTenThousand) {
  const auto graphs = MakeGraphs("base", WorldSize(10'000), {{"peers", "1"}});
  ASSERT_TRUE(graphs.ok()) << graphs.status();
  ConsensusOptions options = Large("base", 10'000, (*graphs)->period(), 100);
  options.graph_options = {{"peers", "1"}};
  options.rounds = (*graphs)->period();
  const absl::StatusOr<ConsensusResult> result = SimulateConsensus(options, true);
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectAsMatrices(*result);
  EXPECT_LT(result->rounds.back().error, kExact);
}

TEST(ConsensusTest, GraphsThatNeverRepeatAreMadeAsTheyAreNeeded) {
  const absl::StatusOr<ConsensusResult> result =
      SimulateConsensus(Large("equi_dyn", 1000, 30, 10), true);
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectAsMatrices(*result);
}

}  // namespace
}  // namespace pelton
