// Gradient tracking against one process that does the same in plain loops.
#include <memory>
#include <vector>

#include "algorithms/test_graph_world.h"
#include "comm/graph/graph_sequence.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

// Threads: one. Owns: what all ranks keep.
class Reference final : public GraphReference {
 public:
  Reference(const GraphCase& one, const std::vector<float>& initial)
      : graphs_(one.graphs()),
        is_push_(one.options.contains("push")),
        global_interval_(one.options.contains("global_interval")
                             ? std::stoul(one.options.at("global_interval"))
                             : 0),
        weights_(static_cast<size_t>(one.size), initial),
        numerators_(weights_),
        own_steps_(static_cast<size_t>(one.size), std::vector<float>(initial.size())),
        mean_steps_(own_steps_),
        shares_minus_one_(static_cast<size_t>(one.size), 0) {}

  void Round(Columns& x, uint64_t round) override {
    for (size_t rank = 0; rank < x.size(); ++rank) {
      for (size_t i = 0; i < x[rank].size(); ++i) {
        const float step = weights_[rank][i] - x[rank][i];
        mean_steps_[rank][i] =
            Combined({{1, mean_steps_[rank][i]}, {1, step}, {-1, own_steps_[rank][i]}});
        own_steps_[rank][i] = step;
      }
    }
    mean_steps_ = Mixed(mean_steps_, round);
    for (size_t rank = 0; rank < x.size(); ++rank) {
      for (size_t i = 0; i < x[rank].size(); ++i) {
        x[rank][i] = weights_[rank][i] - mean_steps_[rank][i];
      }
    }
    x = is_push_ ? Pushed(x, round) : Mixed(x, round);
    weights_ = x;
  }

 private:
  Columns Mixed(const Columns& columns, uint64_t round) const {
    if (global_interval_ > 0 && round % global_interval_ == 0) return GlobalMeansOf(columns);
    const Graph graph = graphs_->At(round - 1);
    return MeansOf(columns, is_push_ ? EqualSharesOf(graph) : graph);
  }

  Columns Pushed(Columns x, uint64_t round) {
    for (size_t rank = 0; rank < x.size(); ++rank) {
      const double factor = 1 / (1.0 + shares_minus_one_[rank]);
      for (size_t i = 0; i < x[rank].size(); ++i) {
        float& numerator = numerators_[rank][i];
        const float last = static_cast<float>(factor) * numerator;
        numerator = Combined({{1, x[rank][i]}, {-1, last}, {1, numerator}});
      }
      numerators_[rank].push_back(1 + shares_minus_one_[rank]);
    }
    numerators_ = Mixed(numerators_, round);
    for (size_t rank = 0; rank < x.size(); ++rank) {
      shares_minus_one_[rank] = static_cast<float>(double{numerators_[rank].back()} - 1);
      numerators_[rank].pop_back();
      const double factor = 1 / (1.0 + shares_minus_one_[rank]);
      for (size_t i = 0; i < x[rank].size(); ++i) {
        x[rank][i] = static_cast<float>(factor) * numerators_[rank][i];
      }
    }
    return x;
  }

  const std::unique_ptr<GraphSequence> graphs_;
  const bool is_push_;
  const uint64_t global_interval_;
  Columns weights_;
  Columns numerators_;
  Columns own_steps_;
  Columns mean_steps_;
  std::vector<float> shares_minus_one_;
};

const ReferenceMaker kMake = [](const GraphCase& one, const std::vector<float>& initial) {
  return std::make_unique<Reference>(one, initial);
};

TEST(GradientTrackingTest, EqualsOneProcessBitByBitOnDirectedAndChangingGraphs) {
  ExpectEqualsReferenceOnGraphs(
      {"gradient_tracking", {}},
      {"ring", "star", "exponential", "one_peer_exponential", "base", "equi_dyn"}, kMake);
}

TEST(GradientTrackingTest, PushesEqualSharesOverWhateverEdges) {
  ExpectEqualsReferenceOnGraphs({"gradient_tracking", {{"push", "true"}}},
                                {"star", "mesh_grid", "equi_dyn"}, kMake);
}

TEST(GradientTrackingTest, HoldsUnderDelaysAndReorderings) {
  ExpectEqualsReferenceUnderDelays({"gradient_tracking", {}}, {"ring", "exponential", "base"},
                                   kMake);
  ExpectEqualsReferenceUnderDelays({"gradient_tracking", {{"push", "true"}}}, {"star", "equi_dyn"},
                                   kMake);
}

TEST(GradientTrackingTest, SendsTwoBucketsToEachDestination) {
  for (const char* graph : {"exponential", "star"}) {
    const SentInRound plain = SentInFirstRound({"gradient_tracking", {{"graph", graph}}, 4});
    EXPECT_EQ(plain.bytes, plain.edges * 2 * plain.bucket_bytes) << graph;
    const SentInRound push =
        SentInFirstRound({"gradient_tracking", {{"graph", graph}, {"push", "true"}}, 4});
    EXPECT_EQ(push.bytes, push.edges * (2 * push.bucket_bytes + 4 * push.bucket_count)) << graph;
  }
}

// Threads: as GraphBuilder. Owns: nothing.
class LopsidedGraph final : public GraphBuilder {
 public:
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    std::vector<double> own(static_cast<size_t>(size.value()), 1);
    own[1] = 0.5;
    return std::make_unique<StaticGraph>(GraphOf(std::move(own), {{0, 1, 0.5}}));
  }
};

REGISTER_GRAPH(test_lopsided, "rank 1 listens to rank 0, and nobody to rank 1", LopsidedGraph);

TEST(GradientTrackingTest, RefusesGraphsThatDoNotKeepTheMeanUnlessItPushes) {
  EXPECT_THAT(StatusOn({"gradient_tracking", {{"graph", "test_lopsided"}}, 2}).ToString(),
              HasSubstr("option graph is 'test_lopsided', which on 2 ranks does not keep the mean "
                        "over all ranks in step 0"));
  EXPECT_TRUE(
      StatusOn({"gradient_tracking", {{"graph", "test_lopsided"}, {"push", "true"}}, 2}).ok());
}

}  // namespace
}  // namespace pelton
