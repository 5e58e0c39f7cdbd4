// NoLoCo against one process that does the same in plain loops.
#include <memory>
#include <vector>

#include "algorithms/test_graph_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr double kRate = 0.75;
constexpr double kMomentum = 0.5;

// Threads: one. Owns: anchors and velocities of all ranks.
class Reference final : public GraphReference {
 public:
  Reference(const GraphCase& one, const std::vector<float>& initial)
      : graphs_(one.graphs()),
        global_interval_(one.options.contains("global_interval")
                             ? std::stoul(one.options.at("global_interval"))
                             : 0),
        anchors_(static_cast<size_t>(one.size), initial),
        velocities_(static_cast<size_t>(one.size), std::vector<float>(initial.size())) {}

  void Round(Columns& x, uint64_t round) override {
    const bool is_global = global_interval_ > 0 && round % global_interval_ == 0;
    const Columns means = is_global ? GlobalMeansOf(x) : MeansOf(x, graphs_->At(round - 1));
    for (size_t rank = 0; rank < x.size(); ++rank) {
      for (size_t i = 0; i < x[rank].size(); ++i) {
        float& velocity = velocities_[rank][i];
        const float gradient = anchors_[rank][i] - means[rank][i];
        velocity = Combined({{kMomentum, velocity}, {1, gradient}});
        anchors_[rank][i] = Combined({{1, anchors_[rank][i]}, {-kRate, velocity}});
      }
    }
    x = anchors_;
  }

 private:
  const std::unique_ptr<GraphSequence> graphs_;
  const uint64_t global_interval_;
  Columns anchors_;
  Columns velocities_;
};

const ReferenceMaker kMake = [](const GraphCase& one, const std::vector<float>& initial) {
  return std::make_unique<Reference>(one, initial);
};
const GraphCase kCase = {"noloco", {{"outer_learning_rate", "0.75"}, {"outer_momentum", "0.5"}}};

TEST(NoLoCoTest, EqualsOneProcessBitByBitInPairsAndOnOtherGraphs) {
  ExpectEqualsReferenceOnGraphs(kCase, {"random_pairs", "ring", "one_peer_exponential"}, kMake);
}

TEST(NoLoCoTest, HoldsUnderDelaysAndReorderings) {
  ExpectEqualsReferenceUnderDelays(kCase, {"random_pairs"}, kMake);
}

TEST(NoLoCoTest, ARankSendsABucketToItsPeer) {
  const SentInRound four = SentInFirstRound({"noloco", {{"graph", "random_pairs"}}, 4});
  EXPECT_EQ(four.bytes, 4 * four.bucket_bytes);
  const SentInRound three = SentInFirstRound({"noloco", {{"graph", "random_pairs"}}, 3});
  EXPECT_EQ(three.bytes, 2 * three.bucket_bytes) << "one rank sits out";
}

TEST(NoLoCoTest, MeetsEachIntervalSteps) {
  const auto algorithm = *MakeAlgorithm("noloco", {{"interval", "7"}});
  EXPECT_EQ(algorithm->schedule().first_step, 7);
  EXPECT_EQ(algorithm->schedule().interval, 7);
}

TEST(NoLoCoTest, RefusesValuesThatDoNotFit) {
  EXPECT_THAT(StatusOn({"noloco", {{"outer_momentum", "2"}}, 2}).ToString(),
              HasSubstr("option outer_momentum is '2'"));
}

}  // namespace
}  // namespace pelton
