// The memory in which a rank takes its neighbours' messages.
#include "algorithms/stage/neighbor_mean.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "comm/graph/graph_sequence.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/plan/bucket.h"
#include "core/plan/plan.h"
#include "core/plan/ready_tracker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr int32_t kSize = 16;
constexpr uint64_t kCount = 1024;
constexpr uint64_t kBytes = kCount * sizeof(float);  // a page: regions have whole ones

// Knows what is registered. Threads: as Communicator. Owns: as its base.
class Counting final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  absl::Status Register(const Region& region) override {
    sizes_[region.id()] = region.size_bytes();
    return ForwardingCommunicator::Register(region);
  }
  void Deregister(RegionId region) override {
    sizes_.erase(region);
    ForwardingCommunicator::Deregister(region);
  }
  uint64_t registered_bytes() const {
    uint64_t sum = 0;
    for (const auto& [region, size_bytes] : sizes_) sum += size_bytes;
    return sum;
  }

 private:
  std::map<RegionId, uint64_t> sizes_;
};

// Pairs, a star, pairs and so on. Threads: any. Owns: the graphs.
class Alternating final : public GraphSequence {
 public:
  WorldSize size() const override { return WorldSize(kSize); }
  uint64_t period() const override { return 2; }
  Graph At(uint64_t step) const override { return (step % 2 == 0 ? *pairs_ : *star_).At(0); }

 private:
  const std::unique_ptr<GraphSequence> pairs_ = *MakeGraphs("random_pairs", size(), {});
  const std::unique_ptr<GraphSequence> star_ = *MakeGraphs("star", size(), {});
};

// One rank of sixteen, of whose round only the beginning is needed.
// Threads: one. Owns: all of it.
class NeighborMeanMemoryTest : public ::testing::Test, public ReadySink {
 protected:
  void OnBucketReady(BucketId, Round) override {}

  static Plan OneTensor() {
    PlanOptions options;
    options.world_size = WorldSize(kSize);
    return *Plan::Build({{.name = "w", .count = kCount}}, options);
  }
  static std::unique_ptr<GraphSequence> Graphs(const std::string& name) {
    return *MakeGraphs(name, WorldSize(kSize), {});
  }

  // In messages, after each of the first two rounds of `rank` began.
  std::pair<double, double> MessagesOf(int32_t rank, std::unique_ptr<GraphSequence> graphs) {
    SimFabric fabric{WorldSize(kSize)};
    auto opened = *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(kSize)));
    Counting counting(std::move(opened[static_cast<size_t>(rank)]));
    const auto stage =
        MakeNeighborMeanStage(counting, {std::move(graphs)}, plan_.bucket(BucketId(0)));
    const auto begun = [&](int32_t round) {
      BucketRun run(plan_, plan_.bucket(BucketId(0)), *storage_, tracker_, counting, Round(round));
      EXPECT_TRUE(stage->Start(run, nullptr).ok());
      return static_cast<double>(counting.registered_bytes()) / kBytes;
    };
    const double first = begun(1);
    return {first, begun(2)};
  }

  const Plan plan_ = OneTensor();
  const std::unique_ptr<BucketStorage> storage_ = *BucketStorage::Create(plan_, "test");
  ReadyTracker tracker_{plan_, *storage_, *this, Round(1)};
};

TEST_F(NeighborMeanMemoryTest, HasRoomForTheSourcesThatThereAre) {
  using ::testing::Pair;
  EXPECT_THAT(MessagesOf(3, Graphs("random_pairs")), Pair(1, 1)) << "that never repeat";
  EXPECT_THAT(MessagesOf(3, Graphs("equi_dyn")), Pair(1, 1));
  EXPECT_THAT(MessagesOf(3, Graphs("ring")), Pair(2, 2));
  EXPECT_THAT(MessagesOf(3, Graphs("star")), Pair(1, 1)) << "a leaf";
  EXPECT_THAT(MessagesOf(0, Graphs("star")), Pair(kSize - 1, kSize - 1)) << "the centre";
}

TEST_F(NeighborMeanMemoryTest, MakesMoreRoomWhereAStepHasMoreSources) {
  EXPECT_THAT(MessagesOf(0, std::make_unique<Alternating>()), ::testing::Pair(1, kSize - 1));
}

}  // namespace
}  // namespace pelton
