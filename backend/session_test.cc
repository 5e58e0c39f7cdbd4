#include "backend/session.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "backend/test_control.h"
#include "core/actor/context.h"
#include "core/actor/monitor.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kTellPatience = absl::Minutes(10);

// Remembers what it is told to end.
// Threads: one. Owns: the reasons.
class FakeCommunicator final : public Communicator {
 public:
  Rank rank() const override { return Rank(0); }
  WorldSize world_size() const override { return WorldSize(3); }
  CommunicatorId id() const override { return CommunicatorId(1); }
  absl::Status Register(const Region& region) override {
    regions.push_back(region.id());
    return absl::OkStatus();
  }
  void Deregister(RegionId) override {}
  absl::StatusOr<Completion> Launch(const Operation&, Stream&) override {
    return absl::UnimplementedError("launches nothing");
  }
  bool Progress() override { return false; }
  State Query(Completion) override { return {}; }
  void Park(absl::Time) override {}
  void Wake() override {}
  std::vector<Rank> Missing() const override { return {}; }
  void Abort(const absl::Status& reason) override { aborts.emplace_back(reason.message()); }

  std::vector<std::string> aborts;
  std::vector<RegionId> regions;
};

// Threads: one. Owns: what it was told.
class RecordingControl final : public SilentControl {
 public:
  absl::Status Report(const absl::Status& reason, absl::Time deadline) override {
    reported.emplace_back(reason.message());
    tells_until = deadline;
    return absl::OkStatus();
  }
  std::vector<std::string> reported;
  absl::Time tells_until;
};

Order PeerLeft(int rank) {
  return {Order::Kind::kPeerLeft, Rank(rank),
          absl::AbortedError(absl::StrCat("rank ", rank, " left"))};
}
Order Lost(int rank) {
  return {Order::Kind::kAbort, Rank(rank),
          absl::UnavailableError(absl::StrCat("rank ", rank, " died"))};
}

// A session in virtual time, with a communicator of all ranks and one of ranks 0 and 2.
// Threads: one. Owns: all of it.
class World {
 public:
  explicit World(uint64_t seed = 1, absl::Duration turn_look_interval = absl::ZeroDuration())
      : executor_(seed) {
    Session::Options options;
    options.turn_look_interval = turn_look_interval;
    options.here = "rank 0 of job 'x'";
    options.control = &control;
    options.note = &note;
    options.telling = &executor_;
    options.tell_patience = kTellPatience;
    SpawnOptions spawning;
    spawning.name = "session";
    spawning.mailbox_capacity = SessionDoor::MailboxCapacity(WorldSize(3));
    session = Spawn<Session>(executor_, std::move(spawning), std::move(options));
    door = std::make_unique<SessionDoor>(session, WorldSize(3));
    Open(all, {0, 1, 2});
    Open(two, {0, 2});
  }

  ~World() { door->Close(); }

  void Open(Communicator& communicator, const std::vector<int32_t>& ranks) {
    EXPECT_TRUE(Ask(Opened{{&communicator, DeviceKind::kHost, Group::Of(ranks)}, {}}).ok());
  }
  template <typename M>
  absl::Status Ask(M message) {
    const absl::Time deadline = executor_.Now() + absl::Seconds(1);
    return session.Ask(std::move(message), deadline).Await(deadline);
  }
  absl::Status MayOpenWith(const std::vector<int32_t>& ranks) {
    return Ask(MayOpen{Group::Of(ranks), {}});
  }
  void Tell(Order order) { ASSERT_TRUE(session.Send(std::move(order)).ok()); }
  // Sends questions until no more go in.
  void FillTheMailbox() {
    // No turn answers meanwhile, so that the first answer is that there is no room.
    while (!session.Ask(MayOpen{Group::Of({0}), {}}, absl::InfiniteFuture()).ready()) {
    }
  }
  void Pass(absl::Duration time) { executor_.RunFor(time); }
  absl::Status Stop() {
    door->Close();
    return executor_.Shutdown(executor_.Now() + absl::Seconds(10));
  }

  RecordingControl control;
  FailureNote note;
  FakeCommunicator all;
  FakeCommunicator two;
  ActorRef<Session> session;
  std::unique_ptr<SessionDoor> door;

 private:
  SimExecutor executor_;
};

TEST(SessionTest, ALostRankEndsEverythingOnce) {
  World world;
  world.Tell(Lost(2));
  world.Tell(Lost(1));
  world.Pass(absl::Milliseconds(1));
  EXPECT_THAT(world.all.aborts, ElementsAre("rank 0 of job 'x': rank 2 died"));
  EXPECT_THAT(world.two.aborts, ElementsAre("rank 0 of job 'x': rank 2 died"));
  EXPECT_THAT(world.note.Get().ToString(), HasSubstr("rank 2 died"));
  EXPECT_THAT(world.control.reported, IsEmpty()) << "the others have the same order";
}

TEST(SessionTest, WhatOpensAfterTheFailureIsEndedAtOnce) {
  World world;
  world.Tell(Lost(2));
  world.Pass(absl::Milliseconds(1));
  EXPECT_THAT(world.MayOpenWith({0, 1}).ToString(), HasSubstr("rank 2 died"));
  FakeCommunicator late;
  world.Open(late, {0, 1});
  EXPECT_THAT(late.aborts, ElementsAre("rank 0 of job 'x': rank 2 died"));
}

TEST(SessionTest, ARankThatLeavesEndsWhatItIsAMemberOfAfterSomeTime) {
  World world;
  world.Tell(PeerLeft(1));
  world.Pass(Session::kGrace / 2);
  EXPECT_THAT(world.all.aborts, IsEmpty());
  world.Pass(Session::kGrace);
  EXPECT_THAT(world.all.aborts, ElementsAre("rank 0 of job 'x': rank 1 left"));
  EXPECT_THAT(world.two.aborts, IsEmpty());
  EXPECT_TRUE(world.note.Get().ok());
  EXPECT_TRUE(world.MayOpenWith({0, 2}).ok());
  EXPECT_THAT(world.MayOpenWith({0, 1}).ToString(), HasSubstr("rank 1 left"));
}

TEST(SessionTest, WhatIsClosedIsNotTouchedAnyMore) {
  ForEachSeed(20, [](uint64_t seed) {
    World world(seed);
    EXPECT_TRUE(world.Ask(Closed{{&world.two, DeviceKind::kHost, {}}, {}}).ok());
    world.Tell(Lost(2));
    world.Pass(absl::Milliseconds(1));
    EXPECT_EQ(world.all.aborts.size(), 1u);
    EXPECT_THAT(world.two.aborts, IsEmpty());
  });
}

TEST(SessionTest, SharedRegionsAreReachedByWhatIsOpenAndWhatOpensLater) {
  World world;
  const auto region = Region::Create(1 << 16, "shared");
  ASSERT_TRUE(region.ok());
  EXPECT_TRUE(world.Ask(ShareRegion{{region->get()}, {}}).ok());
  FakeCommunicator late;
  world.Open(late, {0, 1});
  EXPECT_THAT(world.all.regions, ElementsAre((*region)->id()));
  EXPECT_THAT(late.regions, ElementsAre((*region)->id()));
}

TEST(SessionTest, AFailureHereIsToldToTheOthersEvenByOneThatStops) {
  ForEachSeed(20, [](uint64_t seed) {
    World world(seed);
    ASSERT_TRUE(world.session.Send(FailureHere{absl::DataLossError("the disk is full")}).ok());
    EXPECT_TRUE(world.Stop().ok());
    EXPECT_THAT(world.control.reported, ElementsAre("the disk is full"));
  });
}

TEST(SessionTest, AStoppedSessionForgetsARankThatLeft) {
  World world;
  world.Tell(PeerLeft(1));
  world.Pass(Session::kGrace / 2);
  EXPECT_TRUE(world.Stop().ok());
  EXPECT_THAT(world.all.aborts, IsEmpty());
  EXPECT_TRUE(world.note.Get().ok());
}

struct Break {};
// Fails as it is told to.
class Part final : public Actor {
 public:
  absl::Status Handle(Break) { return absl::DataLossError("this part is broken"); }
};

TEST(SessionTest, APartThatFailsEndsTheSessionWithItsReason) {
  ForEachSeed(20, [](uint64_t seed) {
    World world(seed);
    const ActorRef<Part> part = SpawnUnder<Part>(world.session, {.name = "part"});
    ASSERT_TRUE(part.Send(Break{}).ok());
    world.Pass(absl::Seconds(1));
    EXPECT_FALSE(part.alive());
    EXPECT_TRUE(world.session.alive()) << "it has others to end";
    EXPECT_THAT(world.note.Get().ToString(), HasSubstr("this part is broken"));
    ASSERT_EQ(world.all.aborts.size(), 1u);
    EXPECT_THAT(world.all.aborts[0], HasSubstr("this part is broken"));
    ASSERT_EQ(world.control.reported.size(), 1u) << "the other ranks are told";
    EXPECT_THAT(world.control.reported[0], HasSubstr("this part is broken"));
  });
}

TEST(SessionTest, APartUnderASessionThatHasEndedEndsToo) {
  World world;
  EXPECT_TRUE(world.Stop().ok());
  const ActorRef<Part> part = SpawnUnder<Part>(world.session, {.name = "part"});
  world.Pass(absl::Seconds(1));
  EXPECT_FALSE(part.alive());
}

struct Block {};
// Stays in its turn until it is let go.
class Blocker final : public Actor {
 public:
  Blocker(absl::Notification* is_in_turn, absl::Notification* may_go)
      : is_in_turn_(*is_in_turn), may_go_(*may_go) {}
  void Handle(Block) {
    is_in_turn_.Notify();
    may_go_.WaitForNotification();
  }

 private:
  absl::Notification& is_in_turn_;
  absl::Notification& may_go_;
};

std::vector<std::string>& Lines() {
  static auto* const lines = new std::vector<std::string>;
  return *lines;
}

// A real thread stands while the session's time passes.
TEST(SessionTest, AnActorThatStaysInOneTurnIsLogged) {
  absl::Notification is_in_turn, may_go;
  ThreadExecutor thread;
  const auto blocker = Spawn<Blocker>(thread, {.name = "blocker"}, &is_in_turn, &may_go);
  ASSERT_TRUE(blocker.Send(Block{}).ok());
  is_in_turn.WaitForNotification();
  SetLogSink([](LogLevel, absl::string_view line) { Lines().emplace_back(line); });
  {
    World world(/*seed=*/1, Session::kTurnLookInterval);
    world.Pass(kTellPatience);  // the longest turn that is meant to wait tells of a failure
    EXPECT_THAT(Lines(), IsEmpty());
    world.Pass(4 * Session::kTurnLookInterval);
    EXPECT_THAT(Lines(), ElementsAre(AllOf(HasSubstr("rank 0 of job 'x': blocker, actor "),
                                           HasSubstr("has been in one turn for more than 10m"))));
  }
  SetLogSink(nullptr);
  may_go.Notify();
}

TEST(SessionDoorTest, AnOrderComesThroughAFullMailbox) {
  World world;
  world.FillTheMailbox();
  // The coordinator may repeat itself; what a rank has left behind is then in the mailbox already.
  for (int i = 0; i < 10; ++i) world.door->Send(PeerLeft(1));
  world.door->Send(PeerLeft(2));
  world.door->Send(Lost(2));
  world.door->Send(Lost(1));
  world.Pass(absl::Milliseconds(1));
  EXPECT_THAT(world.all.aborts, ElementsAre("rank 0 of job 'x': rank 2 died"));
  world.Pass(2 * Session::kGrace);
  EXPECT_EQ(world.all.aborts.size(), 3u) << "both that have left are remembered";
}

TEST(SessionDoorTest, AFailureHereComesThroughAFullMailbox) {
  World world;
  world.FillTheMailbox();
  world.door->Report(absl::DataLossError("the disk is full"));
  world.Pass(absl::Milliseconds(1));
  EXPECT_THAT(world.control.reported, ElementsAre("the disk is full"));
  EXPECT_GT(world.control.tells_until, Clock::Real().Now() + kTellPatience / 2)
      << "a coordinator that stands still for a while tells the others then";
}

TEST(SessionDoorTest, ASessionStopsOnceItsDoorIsClosed) {
  World world;
  world.door->Send(PeerLeft(1));
  EXPECT_TRUE(world.Stop().ok()) << "it waits for room that is kept";
  world.door->Send(Lost(2));
  world.door->Report(absl::DataLossError("the disk is full"));
  world.Pass(absl::Milliseconds(1));
  EXPECT_TRUE(world.note.Get().ok());
}

}  // namespace
}  // namespace pelton
