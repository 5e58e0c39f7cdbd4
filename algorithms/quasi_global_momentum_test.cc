// Quasi-global momentum against one process that does the same in plain loops.
#include <memory>
#include <vector>

#include "algorithms/test_graph_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr double kMomentum = 0.75;

// Threads: one. Owns: weights and momenta of all ranks.
class Reference final : public GraphReference {
 public:
  Reference(const GraphCase& one, const std::vector<float>& initial)
      : graphs_(one.graphs()),
        global_interval_(one.options.contains("global_interval")
                             ? std::stoul(one.options.at("global_interval"))
                             : 0),
        weights_(static_cast<size_t>(one.size), initial),
        momenta_(static_cast<size_t>(one.size), std::vector<float>(initial.size())) {}

  void Round(Columns& x, uint64_t round) override {
    for (size_t rank = 0; rank < x.size(); ++rank) {
      for (size_t i = 0; i < x[rank].size(); ++i) {
        x[rank][i] = Combined({{1, x[rank][i]}, {-kMomentum, momenta_[rank][i]}});
      }
    }
    const bool is_global = global_interval_ > 0 && round % global_interval_ == 0;
    x = is_global ? GlobalMeansOf(x) : MeansOf(x, graphs_->At(round - 1));
    for (size_t rank = 0; rank < x.size(); ++rank) {
      for (size_t i = 0; i < x[rank].size(); ++i) {
        const float come = weights_[rank][i] - x[rank][i];
        momenta_[rank][i] = Combined({{kMomentum, momenta_[rank][i]}, {1 - kMomentum, come}});
      }
    }
    weights_ = x;
  }

 private:
  const std::unique_ptr<GraphSequence> graphs_;
  const uint64_t global_interval_;
  Columns weights_;
  Columns momenta_;
};

const ReferenceMaker kMake = [](const GraphCase& one, const std::vector<float>& initial) {
  return std::make_unique<Reference>(one, initial);
};
const GraphCase kCase = {"quasi_global_momentum", {{"momentum", "0.75"}}};

TEST(QuasiGlobalMomentumTest, EqualsOneProcessBitByBitOnStaticAndChangingGraphs) {
  ExpectEqualsReferenceOnGraphs(
      kCase, {"ring", "star", "exponential", "one_peer_exponential", "random_pairs"}, kMake);
}

TEST(QuasiGlobalMomentumTest, HoldsUnderDelaysAndReorderings) {
  ExpectEqualsReferenceUnderDelays(kCase, {"ring", "one_peer_exponential"}, kMake);
}

TEST(QuasiGlobalMomentumTest, SendsABucketToEachDestination) {
  for (const char* graph : {"exponential", "star"}) {
    const SentInRound sent = SentInFirstRound({"quasi_global_momentum", {{"graph", graph}}, 4});
    EXPECT_EQ(sent.bytes, sent.edges * sent.bucket_bytes) << graph;
  }
}

TEST(QuasiGlobalMomentumTest, RefusesValuesThatDoNotFit) {
  EXPECT_THAT(StatusOn({"quasi_global_momentum", {{"momentum", "2"}}, 2}).ToString(),
              HasSubstr("option momentum is '2'"));
}

}  // namespace
}  // namespace pelton
