// The sim transport in virtual time; the conformance suite covers it in real time.
#include "comm/transport/sim/sim_fabric.h"

#include <numeric>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Threads: the test's. Owns: nothing.
class FakeClock final : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::FromUnixSeconds(1'000'000);
};

// A world in virtual time, with a communicator of all ranks.
class SimWorld {
 public:
  explicit SimWorld(int32_t world_size, LinkModel link = {absl::Microseconds(10), 1e9, {}},
                    uint64_t seed = 0, KindSet native_kinds = kSimKinds)
      : fabric(WorldSize(world_size), SimOptions{link, seed, &clock, native_kinds}) {
    auto opened = fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(world_size)));
    EXPECT_TRUE(opened.ok()) << opened.status();
    communicators = *std::move(opened);
  }

  // Jumps from event to event until there is none, or up to `until`.
  void RunUntil(absl::Time until) {
    while (fabric.NextEventTime() <= until && fabric.NextEventTime() != absl::InfiniteFuture()) {
      clock.now = std::max(clock.now, fabric.NextEventTime());
      fabric.RunDue(clock.now);
    }
  }
  void RunAll() { RunUntil(absl::InfiniteFuture()); }

  Communicator& at(int32_t rank) { return *communicators[static_cast<size_t>(rank)]; }

  FakeClock clock;
  SimFabric fabric;
  std::vector<std::unique_ptr<Communicator>> communicators;
};

Completion Launched(const absl::StatusOr<Completion>& completion) {
  EXPECT_TRUE(completion.ok()) << completion.status();
  return completion.ok() ? *completion : Completion{};
}

Completion LaunchSum(Communicator& communicator, std::vector<float>& values) {
  const Tensor tensor{values.data(), values.size(), DType::kFloat32};
  return Launched(AllReduce(communicator, tensor, tensor, ReduceOp::kSum));
}

std::string TextOf(const absl::Status& status) { return std::string(status.message()); }

TEST(SimFabricTest, HundredsOfRanksReduceInOneThread) {
  constexpr int32_t kRanks = 300;
  SimWorld world(kRanks);
  std::vector<std::vector<float>> values(kRanks);
  for (int32_t r = 0; r < kRanks; ++r) {
    values[static_cast<size_t>(r)] = {1, static_cast<float>(r)};
    LaunchSum(world.at(r), values[static_cast<size_t>(r)]);
  }
  world.RunAll();
  for (int32_t r = 0; r < kRanks; ++r) {
    EXPECT_TRUE(world.at(r).Query({1}).done);
    EXPECT_THAT(values[static_cast<size_t>(r)], ElementsAre(300, 44850));
  }
}

// 4000 bytes at 1 GB/s are 4 us. Each link is a wire of its own, so all peers have them after that
// and the latency.
TEST(SimFabricTest, LatencyAndBandwidthDecideWhenAnOperationIsDone) {
  SimWorld world(3);
  std::vector<float> values(1000, 1);
  for (int32_t r = 0; r < 3; ++r) {
    Launched(Broadcast(world.at(r), {values.data(), values.size(), DType::kFloat32}, Rank(0)));
  }
  const absl::Time begin = world.clock.now;
  world.RunUntil(begin + absl::Microseconds(4));
  EXPECT_TRUE(world.at(0).Query({1}).done);  // the root's memory is free when all has left
  EXPECT_FALSE(world.at(1).Query({1}).done);
  world.RunUntil(begin + absl::Microseconds(13));
  EXPECT_FALSE(world.at(1).Query({1}).done);
  world.RunUntil(begin + absl::Microseconds(14));
  EXPECT_TRUE(world.at(1).Query({1}).done);
  EXPECT_TRUE(world.at(2).Query({1}).done);
}

// As a tree: the root sends to rank 2, and then to rank 1.
TEST(SimFabricTest, AProgramTakesTheTimeOfItsWavesAndBooksItsTransfers) {
  SimWorld world(3, {absl::Microseconds(10), 1e9, {}}, 0, {});
  std::vector<float> values[] = {std::vector<float>(1000, 7), std::vector<float>(1000, 1),
                                 std::vector<float>(1000, 2)};
  for (int32_t r = 0; r < 3; ++r) {
    Launched(Broadcast(world.at(r), {values[r].data(), 1000, DType::kFloat32}, Rank(0)));
  }
  const absl::Time begin = world.clock.now;
  world.RunUntil(begin + absl::Microseconds(14));
  EXPECT_TRUE(world.at(0).Query({1}).done);
  EXPECT_TRUE(world.at(2).Query({1}).done);
  EXPECT_EQ(values[2], values[0]);
  world.RunUntil(begin + absl::Microseconds(17));
  EXPECT_FALSE(world.at(1).Query({1}).done);
  EXPECT_EQ(values[1][0], 1);
  world.RunUntil(begin + absl::Microseconds(18));
  EXPECT_TRUE(world.at(1).Query({1}).done);
  EXPECT_EQ(values[1], values[0]);
  EXPECT_EQ(world.fabric.TotalBytesSent(), 8000u);
}

TEST(SimFabricTest, AResultIsNotVisibleBeforeItsCompletion) {
  SimWorld world(2);
  std::vector<float> values[] = {{1}, {2}};
  for (int32_t r = 0; r < 2; ++r) LaunchSum(world.at(r), values[r]);
  EXPECT_THAT(values[0], ElementsAre(1));
  EXPECT_THAT(values[1], ElementsAre(2));
  world.RunAll();
  EXPECT_THAT(values[0], ElementsAre(3));
}

// The second reads what the first wrote.
TEST(SimFabricTest, CollectivesRunOneAfterTheOther) {
  SimWorld world(2);
  std::vector<float> values[] = {{1}, {2}};
  for (int32_t r = 0; r < 2; ++r) {
    LaunchSum(world.at(r), values[r]);
    LaunchSum(world.at(r), values[r]);
  }
  world.RunAll();
  EXPECT_THAT(values[0], ElementsAre(6));
  EXPECT_THAT(values[1], ElementsAre(6));
}

TEST(SimFabricTest, BytesOnTheWireEqualTheFormula) {
  constexpr uint64_t kCount = 1200;
  constexpr uint64_t kBytes = kCount * sizeof(float);
  SimWorld world(4);
  std::vector<std::vector<float>> values(4, std::vector<float>(kCount));
  for (int32_t r = 0; r < 4; ++r) LaunchSum(world.at(r), values[static_cast<size_t>(r)]);
  world.RunAll();
  EXPECT_EQ(world.fabric.BytesSent({Rank(0), Rank(3)}), 2 * kBytes / 4);
  EXPECT_EQ(world.fabric.TotalBytesSent(), 2 * 3 * kBytes);  // 2 (n - 1) S
}

// Same seed, same virtual end; another seed, another.
TEST(SimFabricTest, ARunRepeatsFromItsSeed) {
  auto end_of = [](uint64_t seed) {
    SimWorld world(5, {absl::Microseconds(10), 1e9, absl::Microseconds(100)}, seed);
    std::vector<std::vector<float>> values(5, std::vector<float>(10));
    for (int32_t r = 0; r < 5; ++r) LaunchSum(world.at(r), values[static_cast<size_t>(r)]);
    world.RunAll();
    return world.clock.now;
  };
  EXPECT_EQ(end_of(1), end_of(1));
  EXPECT_NE(end_of(1), end_of(2));
}

TEST(SimFabricTest, AStalledRankIsMissingUntilItsTime) {
  SimWorld world(3);
  const absl::Time until = world.clock.now + absl::Seconds(1);
  world.fabric.Stall(Rank(1), until);
  std::vector<std::vector<float>> values(3, std::vector<float>{1});
  for (int32_t r = 0; r < 3; ++r) LaunchSum(world.at(r), values[static_cast<size_t>(r)]);
  EXPECT_THAT(world.at(0).Missing(), ElementsAre(Rank(1)));
  world.RunUntil(until - absl::Nanoseconds(1));
  EXPECT_FALSE(world.at(0).Query({1}).done);
  world.RunUntil(until + absl::Milliseconds(1));
  EXPECT_TRUE(world.at(0).Query({1}).done);
  EXPECT_THAT(world.at(0).Missing(), IsEmpty());
  EXPECT_THAT(values[2], ElementsAre(3));
}

TEST(SimFabricTest, ADelayedLinkDelaysItsReceiver) {
  SimWorld world(3);
  world.fabric.Delay({Rank(0), Rank(2)}, absl::Seconds(1));
  float value = 0;
  for (int32_t r = 0; r < 3; ++r) {
    Launched(Broadcast(world.at(r), {&value, 1, DType::kFloat32}, Rank(0)));
  }
  world.RunUntil(world.clock.now + absl::Milliseconds(1));
  EXPECT_TRUE(world.at(1).Query({1}).done);
  EXPECT_FALSE(world.at(2).Query({1}).done);
  world.RunAll();
  EXPECT_TRUE(world.at(2).Query({1}).done);
}

TEST(SimFabricTest, PeersOfADeadRankLearnItAfterTheLatency) {
  SimWorld world(3);
  std::vector<float> values = {1};
  LaunchSum(world.at(0), values);
  world.fabric.KillRank(Rank(2));
  EXPECT_EQ(world.at(2).Query({1}).status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(TextOf(Barrier(world.at(2)).status()), "rank 2 died");
  EXPECT_FALSE(world.at(0).Query({1}).done);
  world.RunUntil(world.clock.now + absl::Microseconds(10));
  EXPECT_TRUE(world.at(0).Query({1}).done);
  EXPECT_EQ(world.at(0).Query({1}).status, absl::UnavailableError("rank 2 died"));
  EXPECT_EQ(Barrier(world.at(1)).status(), absl::UnavailableError("rank 2 died"));
}

// Its memory is the user's again: nothing may be written there any more.
TEST(SimFabricTest, AnAbortedOperationWritesNothing) {
  SimWorld world(2);
  std::vector<float> values[] = {{1}, {2}};
  for (int32_t r = 0; r < 2; ++r) LaunchSum(world.at(r), values[r]);
  world.at(0).Abort(absl::CancelledError("stop"));
  values[0][0] = 77;
  world.RunAll();
  EXPECT_THAT(values[0], ElementsAre(77));
}

TEST(SimFabricTest, ADeadRankCannotOpen) {
  SimWorld world(3);
  world.fabric.KillRank(Rank(1));
  const auto opened = world.fabric.OpenAll(CommunicatorId(2), Group::World(WorldSize(3)));
  EXPECT_EQ(opened.status(), absl::UnavailableError("rank 1 died"));
  EXPECT_TRUE(world.fabric.OpenAll(CommunicatorId(2), {{Rank(0), Rank(2)}, Generation(2)}).ok());
}

TEST(SimFabricTest, OpenInVirtualTimeDoesNotWait) {
  SimWorld world(2);
  auto transport = world.fabric.MakeTransport(Rank(0));
  const auto opened =
      transport->Open(CommunicatorId(2), Group::World(WorldSize(2)), absl::InfiniteFuture());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(SimFabricTest, RefusesAGroupThatCannotBe) {
  SimWorld world(2);
  for (const Group& group : {Group{{}, Generation(1)}, Group{{Rank(2)}, Generation(1)},
                             Group{{Rank(0), Rank(0)}, Generation(1)}}) {
    EXPECT_EQ(world.fabric.OpenAll(CommunicatorId(2), group).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(SimFabricTest, AnOperationThatNeedsAClosedRankFails) {
  SimWorld world(3);
  world.communicators[2].reset();
  const Completion barrier = Launched(Barrier(world.at(0)));
  const auto state = world.at(0).Query(barrier);
  EXPECT_TRUE(state.done);
  EXPECT_EQ(state.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(TextOf(state.status), testing::EndsWith("rank 2 closed the communicator"));
}

TEST(SimFabricTest, ARankMayCloseWhenItIsDoneAndItsPeersAreNot) {
  SimWorld world(2);
  world.fabric.Delay({Rank(0), Rank(1)}, absl::Seconds(1));
  float value = 3;
  for (int32_t r = 0; r < 2; ++r) {
    Launched(Broadcast(world.at(r), {&value, 1, DType::kFloat32}, Rank(0)));
  }
  world.RunUntil(world.clock.now + absl::Milliseconds(1));
  ASSERT_TRUE(world.at(0).Query({1}).done);
  world.communicators[0].reset();
  world.RunAll();
  EXPECT_TRUE(world.at(1).Query({1}).done);
  EXPECT_EQ(world.at(1).Query({1}).status, absl::OkStatus());
}

TEST(SimFabricTest, ClosingWithOperationsInFlightFailsThePeers) {
  SimWorld world(2);
  Launched(Barrier(world.at(0)));
  world.communicators[0].reset();
  world.RunAll();
  EXPECT_EQ(Barrier(world.at(1)).status(),
            absl::UnavailableError("rank 0 closed the communicator with operations in flight"));
}

TEST(SimFabricTest, EveryLaunchCanBeAskedFor) {
  SimWorld world(1);
  for (int i = 0; i < 300; ++i) {
    Launched(Barrier(world.at(0)));
    world.RunAll();
  }
  EXPECT_EQ(world.at(0).Query({1}).status, absl::OkStatus());
  EXPECT_EQ(world.at(0).Query({300}).status, absl::OkStatus());
  EXPECT_EQ(world.at(0).Query({301}).status.code(), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace pelton
