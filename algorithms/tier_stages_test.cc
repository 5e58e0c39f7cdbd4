// The stages inside a host, on rank 0 of a host of two ranks.
#include "algorithms/stage/tier_stages.h"

#include <memory>
#include <vector>

#include "comm/transport/sim/sim_fabric.h"
#include "core/plan/bucket.h"
#include "core/plan/plan.h"
#include "core/plan/ready_tracker.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Threads: one. Owns: all of it.
class TierStagesTest : public ::testing::Test, public ReadySink {
 protected:
  void OnBucketReady(BucketId, Round) override {}

  static Plan OneTensor() {
    PlanOptions options;
    options.world_size = WorldSize(2);
    return *Plan::Build({{.name = "w", .count = 16}}, options);
  }

  const Plan plan_ = OneTensor();
  const std::unique_ptr<BucketStorage> storage_ = *BucketStorage::Create(plan_, "test");
  ReadyTracker tracker_{plan_, *storage_, *this, Round(1)};
  SimFabric fabric_{WorldSize(2)};
  const std::vector<std::unique_ptr<Communicator>> communicators_ =
      *fabric_.OpenAll(CommunicatorId(1), Group::World(WorldSize(2)));
};

// A runner over tiers parks on the one of the oldest operation, and would not see another's end.
TEST_F(TierStagesTest, NoOtherBucketFollowsWhileAHostsOperationIsInFlight) {
  Tiers tiers = Tiers::Of(*communicators_[0]);
  tiers.host = tiers.all;
  PipelineSpec spec;
  const auto nothing = [](Communicator&, const std::vector<int32_t>&) { return absl::OkStatus(); };
  ASSERT_TRUE(AddExchangeOfPeers(tiers, true, ReduceOp::kAvg, nothing, spec).ok());
  ASSERT_EQ(spec.stages.size(), 2u);
  for (const std::unique_ptr<Stage>& stage : spec.stages) {
    BucketRun run(plan_, plan_.bucket(BucketId(0)), *storage_, tracker_, *communicators_[0],
                  Round(1));
    ASSERT_TRUE(stage->Start(run, nullptr).ok());
    EXPECT_FALSE(*stage->Advance(run, nullptr)) << "the other rank has launched nothing";
    EXPECT_EQ(run.launch_count(), 1u);
    EXPECT_FALSE(stage->has_launched_all()) << stage->name();
  }
}

}  // namespace
}  // namespace pelton
