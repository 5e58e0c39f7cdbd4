// Conformance of waiting and of several communicators side by side.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/conformance/test_world.h"

namespace pelton::conformance {
namespace {

std::unique_ptr<Communicator> OpenOn(Transport& transport, uint32_t id, const Group& group) {
  auto opened = transport.Open(CommunicatorId(id), group, FarDeadline());
  EXPECT_TRUE(opened.ok()) << opened.status();
  return opened.ok() ? *std::move(opened) : nullptr;
}

// Sums `value` over the communicator.
absl::StatusOr<Completion> LaunchSum(Communicator& communicator, int64_t& value) {
  const Tensor tensor{&value, 1, DType::kInt64};
  return AllReduce(communicator, tensor, tensor, ReduceOp::kSum);
}

void ExpectDone(Communicator& communicator, const absl::StatusOr<Completion>& completion) {
  ASSERT_TRUE(completion.ok()) << completion.status();
  EXPECT_EQ(Await(communicator, *completion, FarDeadline()), absl::OkStatus());
}

// Await drives one communicator only, and the peer may need the other one first.
void AwaitBoth(Communicator& a, Completion of_a, Communicator& b, Completion of_b) {
  const absl::Time deadline = FarDeadline();
  while (!a.Query(of_a).done || !b.Query(of_b).done) {
    const bool moved_a = a.Progress();
    const bool moved_b = b.Progress();
    if (!moved_a && !moved_b) std::this_thread::yield();
    ASSERT_LT(absl::Now(), deadline);
  }
  EXPECT_EQ(a.Query(of_a).status, absl::OkStatus());
  EXPECT_EQ(b.Query(of_b).status, absl::OkStatus());
}

TEST_P(TransportConformanceTest, KnowsItsRankAndId) {
  TestWorld world(GetParam(), 3);
  world.RunTransports([&](Transport&, Rank rank) {
    EXPECT_EQ(world.communicator(rank).rank(), rank);
    EXPECT_EQ(world.communicator(rank).world_size(), WorldSize(3));
    EXPECT_EQ(world.communicator(rank).id(), CommunicatorId(1));
  });
}

// No rank is behind the barrier before all are at it.
TEST_P(TransportConformanceTest, ABarrierWaitsForAllRanks) {
  TestWorld world(GetParam(), 4);
  std::atomic<int> arrived = 0;
  world.Run([&](Communicator& communicator) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      ExpectDone(communicator, Barrier(communicator));
      EXPECT_GE(arrived.load(), 4 * round);
      ExpectDone(communicator, Barrier(communicator));
    }
  });
}

TEST_P(TransportConformanceTest, ACollectiveIsNotDoneBeforeTheLastRankLaunches) {
  TestWorld world(GetParam(), 2);
  world.Run([](Communicator& communicator) {
    if (communicator.rank() == Rank(1)) return;
    int64_t value = 5;
    const auto completion = LaunchSum(communicator, value);
    ASSERT_TRUE(completion.ok()) << completion.status();
    for (int i = 0; i < 100; ++i) communicator.Progress();
    EXPECT_FALSE(communicator.Query(*completion).done);
    HostStream stream;
    EXPECT_FALSE(communicator.Follow(*completion, stream).done);
    EXPECT_EQ(value, 5);
    communicator.Abort(absl::CancelledError("seen"));
  });
}

TEST_P(TransportConformanceTest, ProgressAfterCompletionMovesNothing) {
  TestWorld world(GetParam(), 2);
  world.Run([](Communicator& communicator) {
    int64_t value = 1;
    ExpectDone(communicator, LaunchSum(communicator, value));
    EXPECT_EQ(value, 2);
    EXPECT_FALSE(communicator.Progress());
  });
}

TEST_P(TransportConformanceTest, AWakeBeforeParkIsNotLost) {
  TestWorld world(GetParam(), 2);
  world.Run([](Communicator& communicator) {
    communicator.Wake();
    const absl::Time begin = absl::Now();
    communicator.Park(begin + absl::Seconds(20));
    EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  });
}

TEST_P(TransportConformanceTest, AWakeFromAnotherThreadEndsAPark) {
  TestWorld world(GetParam(), 1);
  Communicator& communicator = world.communicator(Rank(0));
  const absl::Time begin = absl::Now();
  std::thread waker([&] { communicator.Wake(); });
  communicator.Park(begin + absl::Seconds(20));
  waker.join();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST_P(TransportConformanceTest, ParkEndsAtItsTime) {
  TestWorld world(GetParam(), 2);
  world.Run([](Communicator& communicator) {
    const absl::Time until = absl::Now() + absl::Milliseconds(30);
    while (absl::Now() < until) communicator.Park(until);  // wake-ups may be spurious
    EXPECT_LT(absl::Now() - until, absl::Seconds(10));
  });
}

// A rank that sleeps in Park is woken by the peer that completes its operation.
TEST_P(TransportConformanceTest, APeerEndsThePark) {
  TestWorld world(GetParam(), 2);
  world.Run([](Communicator& communicator) {
    if (communicator.rank() == Rank(1)) {
      communicator.Park(absl::Now() + absl::Milliseconds(50));
      ExpectDone(communicator, Barrier(communicator));
      return;
    }
    const auto completion = Barrier(communicator);
    ASSERT_TRUE(completion.ok()) << completion.status();
    const absl::Time begin = absl::Now();
    while (!communicator.Query(*completion).done && absl::Now() - begin < absl::Seconds(20)) {
      if (!communicator.Progress()) communicator.Park(begin + absl::Seconds(20));
    }
    EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  });
}

// The order between two communicators is nobody's business: each rank has its own.
TEST_P(TransportConformanceTest, TwoCommunicatorsHaveIndependentOrders) {
  TestWorld world(GetParam(), 2);
  world.RunTransports([&](Transport& transport, Rank rank) {
    auto second = OpenOn(transport, 2, Group::World(WorldSize(2)));
    ASSERT_NE(second, nullptr);
    Communicator* order[] = {&world.communicator(rank), second.get()};
    if (rank == Rank(1)) std::swap(order[0], order[1]);
    for (int round = 0; round < 50; ++round) {
      int64_t values[] = {1, 1};
      const auto first = LaunchSum(*order[0], values[0]);
      const auto other = LaunchSum(*order[1], values[1]);
      ASSERT_TRUE(first.ok() && other.ok());
      AwaitBoth(*order[0], *first, *order[1], *other);
      EXPECT_EQ(values[0], 2);
      EXPECT_EQ(values[1], 2);
    }
  });
}

// Ranks 0, 2 and 1, 3 in groups of their own, the second in reverse order.
TEST_P(TransportConformanceTest, SubGroupsNumberTheirOwnRanks) {
  TestWorld world(GetParam(), 4);
  world.RunTransports([](Transport& transport, Rank rank) {
    const bool even = rank.value() % 2 == 0;
    const Group group{even ? std::vector{Rank(0), Rank(2)} : std::vector{Rank(3), Rank(1)},
                      Generation(1)};
    auto communicator = OpenOn(transport, even ? 20 : 21, group);
    ASSERT_NE(communicator, nullptr);
    EXPECT_EQ(communicator->world_size(), WorldSize(2));
    EXPECT_EQ(communicator->rank(), *group.RankOf(rank));
    int32_t mine = rank.value();
    int32_t all[2] = {-1, -1};
    ExpectDone(*communicator,
               AllGather(*communicator, {&mine, 1, DType::kInt32}, {all, 2, DType::kInt32}));
    EXPECT_EQ(Rank(all[0]), group.members[0]);
    EXPECT_EQ(Rank(all[1]), group.members[1]);
  });
  world.ExpectUsable();
}

TEST_P(TransportConformanceTest, AnAbortStaysInItsCommunicator) {
  TestWorld world(GetParam(), 2);
  world.RunTransports([](Transport& transport, Rank rank) {
    auto aborted = OpenOn(transport, 2, Group::World(WorldSize(2)));
    ASSERT_NE(aborted, nullptr);
    aborted->Abort(absl::CancelledError("only this one"));
  });
  world.ExpectUsable();
}

TEST_P(TransportConformanceTest, ARegionCanBeRegisteredLate) {
  TestWorld world(GetParam(), 2);
  world.ExpectUsable();
  world.Run([](Communicator& communicator) {
    auto region = Region::Create(1 << 20, "late");
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_EQ(communicator.Register(**region), absl::OkStatus());
    auto* values = reinterpret_cast<float*>((*region)->data());
    const uint64_t count = (*region)->size_bytes() / sizeof(float);
    std::fill(values, values + count, 1.0f + static_cast<float>(communicator.rank().value()));
    const Tensor tensor{values, count, DType::kFloat32};
    ExpectDone(communicator, AllReduce(communicator, tensor, tensor, ReduceOp::kSum));
    EXPECT_EQ(std::count(values, values + count, 3.0f), static_cast<ptrdiff_t>(count));
    ExpectDone(communicator, Barrier(communicator));  // the peer may still read until here
    communicator.Deregister((*region)->id());
  });
  world.ExpectUsable();
}

}  // namespace
}  // namespace pelton::conformance
