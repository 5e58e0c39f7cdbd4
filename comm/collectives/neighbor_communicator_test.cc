// What the transports' conformance leaves open: a rank that alone cannot begin an operation.
#include "comm/collectives/neighbor_communicator.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/neighbors.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

// Two ranks over a fabric, in one thread. Threads: the test's. Owns: all of it.
struct World {
  World() : fabric(WorldSize(2), SimOptions{LinkModel{}, 1, &Clock::Real()}) {
    auto opened = fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(2)));
    EXPECT_TRUE(opened.ok()) << opened.status();
    for (auto& wire : *opened) ranks.push_back(MakeNeighborCommunicator(std::move(wire)));
  }
  // Until nothing moves any more.
  void Settle() {
    for (bool moved = true; moved;) {
      fabric.RunDue(absl::InfiniteFuture());
      moved = false;
      for (auto& rank : ranks) moved |= rank->Progress();
    }
  }

  SimFabric fabric;
  std::vector<std::unique_ptr<Communicator>> ranks;
};

TEST(NeighborCommunicatorTest, ARankWithoutMemoryTellsItsNeighbor) {
  World world;
  const Neighbor to[] = {{Rank(0), 1}};
  const Neighbor from[] = {{Rank(1), 1}};
  const auto receives = WeightTable::Create({.own = 1, .sources = {from[0]}, .destinations = {}});
  const auto sends = WeightTable::Create({.own = 1, .sources = {}, .destinations = {to[0]}});
  ASSERT_TRUE(receives.ok() && sends.ok());
  // Nobody touches it: no process has addresses for what arrives.
  double element = 0;
  const Tensor tensor{&element, uint64_t{1} << 45, DType::kFloat64};
  const auto sent = NeighborAllReduce(*world.ranks[1], tensor, tensor, **sends);
  ASSERT_TRUE(sent.ok()) << sent.status();
  const auto received = NeighborAllReduce(*world.ranks[0], tensor, tensor, **receives);
  EXPECT_THAT(std::string(received.status().message()), HasSubstr("bytes of memory"));
  world.Settle();
  const OperationRunner::State state = world.ranks[1]->Query(*sent);
  ASSERT_TRUE(state.done);
  EXPECT_THAT(std::string(state.status.message()), HasSubstr("bytes of memory"));
  // Neither takes what is left of that operation for a part of its next one.
  const Tensor one{&element, 1, DType::kFloat64};
  for (const int rank : {0, 1}) {
    const auto next = NeighborAllReduce(*world.ranks[static_cast<size_t>(rank)], one, one,
                                        rank == 0 ? **receives : **sends);
    EXPECT_FALSE(next.ok());
    EXPECT_FALSE(absl::IsResourceExhausted(next.status())) << "for ever, to whoever waits for room";
  }
}

}  // namespace
}  // namespace pelton
