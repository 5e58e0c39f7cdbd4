// Stochastic gradient push against one process that does the same in plain loops.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/test_graph_world.h"
#include "algorithms/test_ranks.h"
#include "algorithms/test_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

// Threads: one. Owns: numerators and shares of all ranks.
class Reference final : public GraphReference {
 public:
  Reference(const GraphCase& one, const std::vector<float>& initial)
      : graphs_(one.graphs()),
        global_interval_(one.options.contains("global_interval")
                             ? std::stoul(one.options.at("global_interval"))
                             : 0),
        numerators_(static_cast<size_t>(one.size), initial),
        shares_minus_one_(static_cast<size_t>(one.size), 0) {}

  void Round(Columns& x, uint64_t round) override {
    for (size_t rank = 0; rank < x.size(); ++rank) {
      const double factor = 1 / (1.0 + shares_minus_one_[rank]);
      std::vector<float>& numerator = numerators_[rank];
      for (size_t i = 0; i < x[rank].size(); ++i) {
        const float last = static_cast<float>(factor) * numerator[i];
        numerator[i] = Combined({{1, x[rank][i]}, {-1, last}, {1, numerator[i]}});
      }
      numerator.push_back(1 + shares_minus_one_[rank]);
    }
    const bool is_global = global_interval_ > 0 && round % global_interval_ == 0;
    numerators_ = is_global ? GlobalMeansOf(numerators_)
                            : MeansOf(numerators_, EqualSharesOf(graphs_->At(round - 1)));
    for (size_t rank = 0; rank < x.size(); ++rank) {
      shares_minus_one_[rank] = static_cast<float>(double{numerators_[rank].back()} - 1);
      numerators_[rank].pop_back();
      const double factor = 1 / (1.0 + shares_minus_one_[rank]);
      for (size_t i = 0; i < x[rank].size(); ++i) {
        x[rank][i] = static_cast<float>(factor) * numerators_[rank][i];
      }
    }
  }

 private:
  const std::unique_ptr<GraphSequence> graphs_;
  const uint64_t global_interval_;
  Columns numerators_;
  std::vector<float> shares_minus_one_;
};

const ReferenceMaker kMake = [](const GraphCase& one, const std::vector<float>& initial) {
  return std::make_unique<Reference>(one, initial);
};

// s, w and the weights that the last round left, of all ranks. Threads: one. Owns: its lists.
struct Shares {
  Columns numerators;
  std::vector<float> minus_one;
  Columns left;
};

// A round: by how much each rank's weights are to change.
Columns Changes(Shares& all, const Columns& x, const Graph& graph) {
  for (size_t rank = 0; rank < x.size(); ++rank) {
    std::vector<float>& s = all.numerators[rank];
    for (size_t i = 0; i < s.size(); ++i) {
      s[i] = Combined({{1, x[rank][i]}, {-1, all.left[rank][i]}, {1, s[i]}});
    }
    s.push_back(1 + all.minus_one[rank]);
  }
  all.numerators = MeansOf(all.numerators, EqualSharesOf(graph));
  Columns changes = x;
  for (size_t rank = 0; rank < x.size(); ++rank) {
    std::vector<float>& s = all.numerators[rank];
    all.minus_one[rank] = static_cast<float>(double{s.back()} - 1);
    s.pop_back();
    for (size_t i = 0; i < s.size(); ++i) {
      changes[rank][i] = Combined({{1 / (1.0 + all.minus_one[rank]), s[i]}, {-1, x[rank][i]}});
      all.left[rank][i] = Combined({{1, x[rank][i]}, {1, changes[rank][i]}});
    }
  }
  return changes;
}

void ExpectEqualsDelayedReference(const GraphCase& one) {
  TestRanksOptions options;
  options.algorithm = one.algorithm;
  options.options = one.options;
  options.host_sizes.assign(static_cast<size_t>(one.size), 1);
  options.tensors = {{"a", DType::kFloat32, 37, {}}};
  TestWorld world(options);
  const Values initial = TestWorld::Ramp(options.tensors, 5, 2);
  world.Prime(initial);
  const auto graphs = one.graphs();
  Columns x(static_cast<size_t>(one.size), initial[0]);
  Shares all = {x, std::vector<float>(x.size(), 0), x};
  const auto train = [&](uint64_t step) {
    for (size_t rank = 0; rank < x.size(); ++rank) {
      const Values ramp = TestWorld::Ramp(options.tensors, static_cast<int32_t>(rank), step);
      for (size_t i = 0; i < ramp[0].size(); ++i) x[rank][i] -= 0.1F * ramp[0][i];
    }
  };
  for (uint64_t round = 1; round <= 6; ++round) {
    train(2 * round);
    std::vector<Values> given;
    for (const std::vector<float>& rank : x) given.push_back({rank});
    const std::vector<Values> results = world.Round(given);
    const Columns changes = Changes(all, x, graphs->At(round - 1));
    train(2 * round + 1);  // before the results are merged
    for (size_t rank = 0; rank < x.size(); ++rank) {
      ASSERT_EQ(results[rank][0], changes[rank]) << "round " << round << ", rank " << rank;
      for (size_t i = 0; i < x[rank].size(); ++i) x[rank][i] += changes[rank][i];
    }
  }
}

TEST(PushSumTest, EqualsOneProcessBitByBitOnDirectedAndChangingGraphs) {
  ExpectEqualsReferenceOnGraphs({"push_sum", {}},
                                {"star", "ring", "exponential", "one_peer_exponential", "mesh_grid",
                                 "base", "equi_dyn", "random_pairs"},
                                kMake);
}

TEST(PushSumTest, HoldsUnderDelaysAndReorderings) {
  ExpectEqualsReferenceUnderDelays({"push_sum", {}}, {"star", "exponential", "equi_dyn"}, kMake);
}

// Rounds whose results come while ranks train on: what is added to the weights then, and what
// training has changed before that, in plain loops.
TEST(PushSumTest, WithADelayEqualsOneProcessBitByBit) {
  for (const char* graph : {"star", "one_peer_exponential", "exponential"}) {
    for (const int32_t size : {1, 2, 3, 4}) {
      SCOPED_TRACE(absl::StrCat(graph, " of ", size));
      const AlgorithmOptions options = {{"graph", graph}, {"interval", "4"}, {"delay", "2"}};
      ExpectEqualsDelayedReference({"push_sum", options, size});
    }
  }
}

TEST(PushSumTest, ADelayIsBelowTheInterval) {
  const Schedule schedule =
      (*MakeAlgorithm("push_sum", {{"interval", "3"}, {"delay", "2"}}))->schedule();
  EXPECT_EQ(schedule.delay, 2);
  EXPECT_EQ(schedule.commit.kept, 1);
  EXPECT_EQ((*MakeAlgorithm("push_sum", {}))->schedule().commit.kept, 0);
  EXPECT_THAT(MakeAlgorithm("push_sum", {{"interval", "3"}, {"delay", "3"}}).status().ToString(),
              HasSubstr("option delay is 3, not below interval, 3"));
}

TEST(PushSumTest, SendsABucketAndAShareToEachDestination) {
  for (const char* graph : {"exponential", "star", "one_peer_exponential"}) {
    const SentInRound sent = SentInFirstRound({"push_sum", {{"graph", graph}}, 4});
    EXPECT_EQ(sent.bytes, sent.edges * (sent.bucket_bytes + 4 * sent.bucket_count)) << graph;
  }
}

TEST(PushSumTest, RefusesValuesThatDoNotFit) {
  EXPECT_THAT(StatusOn({"push_sum", {{"graph", "circle"}}, 2}).ToString(),
              HasSubstr("option graph is 'circle', not one of"));
  EXPECT_THAT(StatusOn({"push_sum", {{"graph", "ring"}, {"graph.no_such", "1"}}, 2}).ToString(),
              HasSubstr("no_such"));
}

}  // namespace
}  // namespace pelton
