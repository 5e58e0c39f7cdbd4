// One runner over the communicators of a group's tiers.
#include "comm/tiers.h"

#include <memory>
#include <vector>

#include "comm/transport/sim/sim_fabric.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Communicators = std::vector<std::unique_ptr<Communicator>>;

void LaunchBarrier(TieredRunner& runner, const Communicator& tier) {
  Operation operation;
  operation.kind = OperationKind::kBarrier;
  operation.communicator = tier.id();
  HostStream stream;
  ASSERT_TRUE(runner.Launch(operation, stream).ok());
}

// Two hosts of two ranks.
TEST(TieredRunnerTest, WhoIsMissingOnATierIsNamedByItsRankAmongAll) {
  SimFabric fabric(WorldSize(4));
  const Communicators all = *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(4)));
  const Group host{{Rank(2), Rank(3)}, Generation(1)};
  const Group leaders{{Rank(0), Rank(2)}, Generation(1)};
  const Communicators on_host = *fabric.OpenAll(CommunicatorId(2), host);
  const Communicators leading = *fabric.OpenAll(CommunicatorId(3), leaders);
  Tiers tiers = Tiers::Of(*all[2]);
  tiers.host = on_host[0].get();
  tiers.host_ranks = host.members;
  tiers.leaders = leading[1].get();
  tiers.leader_ranks = leaders.members;

  TieredRunner waits_on_host(tiers);
  EXPECT_THAT(waits_on_host.Missing(), IsEmpty());
  LaunchBarrier(waits_on_host, *tiers.host);
  EXPECT_THAT(waits_on_host.Missing(), ElementsAre(Rank(3)));

  tiers.host = nullptr;
  TieredRunner waits_for_leaders(tiers);
  LaunchBarrier(waits_for_leaders, *tiers.leaders);
  EXPECT_THAT(waits_for_leaders.Missing(), ElementsAre(Rank(0)));
}

}  // namespace
}  // namespace pelton
