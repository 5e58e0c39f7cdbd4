// Stochastic gradient push against one process that does the same in plain loops.
#include <cmath>
#include <memory>
#include <vector>

#include "algorithms/test_graph_world.h"
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

TEST(PushSumTest, EqualsOneProcessBitByBitOnDirectedAndChangingGraphs) {
  ExpectEqualsReferenceOnGraphs({"push_sum", {}},
                                {"star", "ring", "exponential", "one_peer_exponential", "mesh_grid",
                                 "base", "equi_dyn", "random_pairs"},
                                kMake);
}

TEST(PushSumTest, HoldsUnderDelaysAndReorderings) {
  ExpectEqualsReferenceUnderDelays({"push_sum", {}}, {"star", "exponential", "equi_dyn"}, kMake);
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
