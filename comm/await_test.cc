#include "comm/await.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/actor/sim_executor.h"
#include "core/base/check.h"
#include "core/base/long_wait.h"
#include "core/base/moving_deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

std::string TextOf(const absl::Status& status) { return std::string(status.message()); }

std::vector<std::unique_ptr<Communicator>> OpenWorld(SimFabric& fabric) {
  auto opened = fabric.OpenAll(CommunicatorId(3), Group::World(fabric.world_size()));
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

TEST(AwaitTest, ReturnsTheStatusOfTheOperation) {
  SimFabric fabric(WorldSize(1));
  auto world = OpenWorld(fabric);
  const auto barrier = Barrier(*world[0]);
  ASSERT_TRUE(barrier.ok());
  EXPECT_EQ(Await(*world[0], *barrier, absl::InfiniteFuture()), absl::OkStatus());
}

TEST(AwaitTest, NamesTheMissingRanksAndAborts) {
  SimFabric fabric(WorldSize(4));
  auto world = OpenWorld(fabric);
  const auto barrier = Barrier(*world[1]);
  ASSERT_TRUE(barrier.ok() && Barrier(*world[2]).ok());
  const absl::Status status = Await(*world[1], *barrier, absl::Now());
  EXPECT_EQ(status, absl::DeadlineExceededError("rank 1: operation 1 of communicator 3 missed its "
                                                "deadline; waiting for rank(s) 0, 3"));
  EXPECT_EQ(Barrier(*world[1]).status(), status);
  EXPECT_THAT(TextOf(world[2]->Query({1}).status), HasSubstr("rank 1 aborted: "));
}

// Its peer gives up while this rank looks who is missing; it hears of that when it makes progress,
// as over a wire. Threads: one. Owns: what it wraps.
class Late final : public ForwardingCommunicator {
 public:
  Late(std::unique_ptr<Communicator> wrapped, Communicator& peer)
      : ForwardingCommunicator(std::move(wrapped)), peer_(peer) {}
  std::vector<Rank> Missing() const override {
    peer_.Abort(absl::DeadlineExceededError("waiting for rank(s) 1"));
    has_heard_ = false;
    return ForwardingCommunicator::Missing();
  }
  bool Progress() override {
    const bool moved = ForwardingCommunicator::Progress();
    return !std::exchange(has_heard_, true) || moved;
  }
  State Query(Completion completion) override {
    return has_heard_ ? ForwardingCommunicator::Query(completion) : State{};
  }

 private:
  Communicator& peer_;
  mutable bool has_heard_ = true;
};

TEST(AwaitTest, GivesTheWordsOfARankWhoseDeadlineHasPassedFirst) {
  SimFabric fabric(WorldSize(3));
  auto world = OpenWorld(fabric);
  Late late(std::move(world[0]), *world[2]);
  const auto barrier = Barrier(late);
  ASSERT_TRUE(barrier.ok() && Barrier(*world[2]).ok());
  EXPECT_THAT(TextOf(Await(late, *barrier, absl::Now())),
              HasSubstr("rank 2 aborted: waiting for rank(s) 1"));
}

TEST(AwaitTest, SaysSoWhenAllHaveArrived) {
  SimFabric fabric(WorldSize(2), {{absl::Hours(1), 0, {}}});
  auto world = OpenWorld(fabric);
  const auto barrier = Barrier(*world[0]);
  ASSERT_TRUE(barrier.ok() && Barrier(*world[1]).ok());
  EXPECT_THAT(TextOf(Await(*world[0], *barrier, absl::Now())), HasSubstr("every rank has arrived"));
}

TEST(AwaitTest, AThreadThatWaitsIsWokenByItsPeer) {
  SimFabric fabric(WorldSize(2));
  auto world = OpenWorld(fabric);
  const auto barrier = Barrier(*world[0]);
  ASSERT_TRUE(barrier.ok());
  std::thread peer([&] { EXPECT_TRUE(Barrier(*world[1]).ok()); });
  EXPECT_EQ(Await(*world[0], *barrier, absl::Now() + absl::Seconds(60)), absl::OkStatus());
  peer.join();
}

TEST(AwaitTest, AnInterruptEndsTheWaitAndTellsThePeers) {
  SimFabric fabric(WorldSize(2));
  auto world = OpenWorld(fabric);
  const auto barrier = Barrier(*world[0]);
  ASSERT_TRUE(barrier.ok());
  SetInterruptCheck([] { return InterruptedError("interrupted by a signal (X)"); });
  const absl::Status status = Await(*world[0], *barrier, absl::Now() + absl::Seconds(60));
  SetInterruptCheck(nullptr);
  EXPECT_TRUE(IsInterrupted(status)) << status;
  EXPECT_EQ(Barrier(*world[1]).status(),
            absl::AbortedError("rank 0 aborted: interrupted by a signal (X)"));
}

TEST(AwaitTest, AWaitThatLastsIsTold) {
  static std::vector<std::string> lines;
  SetLogSink([](LogLevel, absl::string_view line) { lines.emplace_back(line); });
  SetStallInterval(absl::Milliseconds(20));
  SimFabric fabric(WorldSize(3));
  auto world = OpenWorld(fabric);
  const auto barrier = Barrier(*world[0]);
  ASSERT_TRUE(barrier.ok() && Barrier(*world[1]).ok());
  const CallName name("barrier", "default");
  EXPECT_FALSE(Await(*world[0], *barrier, absl::Now() + absl::Seconds(1)).ok());
  SetStallInterval(absl::Seconds(30));
  SetLogSink(nullptr);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines[0], HasSubstr("rank 0 has waited "));
  EXPECT_THAT(lines[0], HasSubstr(") in barrier of group 'default'; waiting for rank(s) 2"));
}

// An hour of latency passes in virtual time.
TEST(AwaitTest, RunsTheSimulationWhileItWaits) {
  SimExecutor executor(1);
  SimFabric fabric(WorldSize(2), {{absl::Hours(1), 0, {}}, 0, &executor.clock()});
  executor.AddEventSource(&fabric);
  auto world = OpenWorld(fabric);
  const absl::Time begin = executor.Now();
  const auto barrier = Barrier(*world[0]);
  ASSERT_TRUE(barrier.ok() && Barrier(*world[1]).ok());
  EXPECT_EQ(Await(*world[0], *barrier, begin + absl::Hours(2)), absl::OkStatus());
  EXPECT_EQ(executor.Now(), begin + absl::Hours(1));
  executor.RemoveEventSource(&fabric);
}

TEST(AwaitTest, TheDeadlineStandsStillAndIsThenMissed) {
  SimExecutor executor(1);
  SimFabric fabric(WorldSize(2), {{absl::Hours(1), 0, {}}, 0, &executor.clock()});
  executor.AddEventSource(&fabric);
  auto world = OpenWorld(fabric);
  const absl::Time begin = executor.Now();
  const auto barrier = Barrier(*world[0]);
  ASSERT_TRUE(barrier.ok() && Barrier(*world[1]).ok());
  Standstill standstill;
  standstill.Begin(begin - absl::Minutes(7));
  EXPECT_EQ(Await(*world[0], *barrier, begin + absl::Minutes(1), &standstill), absl::OkStatus());
  EXPECT_EQ(executor.Now(), begin + absl::Hours(1));
  // What was before the wait does not count.
  standstill.End(executor.Now());
  const auto second = Barrier(*world[0]);
  ASSERT_TRUE(second.ok());
  const absl::Time deadline = executor.Now() + absl::Minutes(1);
  EXPECT_THAT(TextOf(Await(*world[0], *second, deadline, &standstill)),
              HasSubstr("waiting for rank(s) 1"));
  EXPECT_EQ(executor.Now(), deadline);
  executor.RemoveEventSource(&fabric);
}

}  // namespace
}  // namespace pelton
