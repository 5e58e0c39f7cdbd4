// Exact diffusion and D² against one process that does the same in plain loops.
#include <memory>
#include <utility>
#include <vector>

#include "algorithms/test_graph_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

// Threads: one. Owns: the corrections of all ranks.
class Reference final : public GraphReference {
 public:
  Reference(const GraphCase& one, const std::vector<float>& initial)
      : graph_(one.graphs()->At(0)),
        global_interval_(one.options.contains("global_interval")
                             ? std::stoul(one.options.at("global_interval"))
                             : 0),
        corrections_(static_cast<size_t>(one.size), std::vector<float>(initial.size())) {
    if (one.options.contains("damped")) return;
    std::vector<double> own(graph_.own().begin(), graph_.own().end());
    std::vector<Graph::Edge> edges(graph_.edges().begin(), graph_.edges().end());
    for (double& weight : own) weight = (1 + weight) / 2;
    for (Graph::Edge& edge : edges) edge.weight /= 2;
    graph_ = *Graph::Create(std::move(own), std::move(edges));
  }

  void Round(Columns& x, uint64_t round) override {
    const Columns psi = x;
    for (size_t rank = 0; rank < x.size(); ++rank) {
      for (size_t i = 0; i < x[rank].size(); ++i) x[rank][i] += corrections_[rank][i];
    }
    const bool is_global = global_interval_ > 0 && round % global_interval_ == 0;
    x = is_global ? GlobalMeansOf(x) : MeansOf(x, graph_);
    for (size_t rank = 0; !is_global && rank < x.size(); ++rank) {
      for (size_t i = 0; i < x[rank].size(); ++i) corrections_[rank][i] = x[rank][i] - psi[rank][i];
    }
  }

 private:
  Graph graph_;
  const uint64_t global_interval_;
  Columns corrections_;
};

const ReferenceMaker kMake = [](const GraphCase& one, const std::vector<float>& initial) {
  return std::make_unique<Reference>(one, initial);
};

TEST(ExactDiffusionTest, EqualsOneProcessBitByBitOnEverySymmetricGraph) {
  ExpectEqualsReferenceOnGraphs(
      {"exact_diffusion", {}},
      {"ring", "star", "mesh_grid", "symmetric_exponential", "fully_connected"}, kMake);
}

TEST(ExactDiffusionTest, WithoutDampingItIsD2) {
  ExpectEqualsReferenceOnGraphs({"exact_diffusion", {{"damped", "false"}}},
                                {"star", "fully_connected"}, kMake);
}

TEST(ExactDiffusionTest, HoldsUnderDelaysAndReorderings) {
  ExpectEqualsReferenceUnderDelays({"exact_diffusion", {}}, {"ring", "star", "fully_connected"},
                                   kMake);
}

TEST(ExactDiffusionTest, SendsABucketToEachNeighbour) {
  for (const char* graph : {"ring", "star"}) {
    const SentInRound sent = SentInFirstRound({"exact_diffusion", {{"graph", graph}}, 4});
    EXPECT_EQ(sent.bytes, sent.edges * sent.bucket_bytes) << graph;
  }
}

TEST(ExactDiffusionTest, RefusesGraphsThatItsTheoryDoesNotAdmit) {
  const auto error = [](const AlgorithmOptions& options, int32_t size) {
    return StatusOn({"exact_diffusion", options, size}).ToString();
  };
  EXPECT_THAT(error({{"graph", "exponential"}}, 4),
              HasSubstr("option graph is 'exponential', which on 4 ranks is not symmetric"));
  EXPECT_THAT(error({{"graph", "one_peer_exponential"}}, 4),
              HasSubstr("which on 4 ranks is not the same in every step"));
  EXPECT_THAT(error({{"graph", "ring"}, {"damped", "false"}}, 4), HasSubstr("not above -1/3"));
  // The eigenvalues of an odd ring are above it.
  EXPECT_EQ(error({{"graph", "ring"}, {"damped", "false"}}, 5), "OK");
  EXPECT_EQ(error({{"graph", "ring"}}, 4), "OK");
}

}  // namespace
}  // namespace pelton
