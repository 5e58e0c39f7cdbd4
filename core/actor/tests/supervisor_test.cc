#include "core/actor/supervisor.h"

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/actor/context.h"
#include "core/actor/executor_fixture.h"
#include "core/actor/monitor.h"
#include "core/actor/spawn.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// What the actors of a test report, from whatever thread.
struct Journal {
  std::array<std::atomic<int>, 4> starts{};
  std::array<std::atomic<int>, 4> stops{};
  std::atomic<int> ticks{0};
  std::atomic<int> stopped_children{0};
};

struct FailNow {};
struct Ask {
  Promise<int> reply;
};
struct TickLater {};
struct Tick {};

class TestChild : public Actor {
 public:
  TestChild(Journal* journal, size_t number) : journal_(journal), number_(number) {}
  absl::Status OnStart() override {
    ++journal_->starts[number_];
    return absl::OkStatus();
  }
  void OnStop(const absl::Status&) override {
    ++journal_->stops[number_];
    ++journal_->stopped_children;
  }
  absl::Status Handle(FailNow) { return absl::DataLossError("TestChild failed"); }
  void Handle(Ask ask) { ask.reply.Set(++answers_); }
  void Handle(TickLater) { context().SendAfter(*this, absl::Seconds(1), Tick{}); }
  void Handle(Tick) { ++journal_->ticks; }

 private:
  Journal* journal_;
  size_t number_;
  int answers_ = 0;
};

struct Adopt {
  OnFailure on_failure;
  size_t number;
  Promise<ActorRef<TestChild>> reply;
};

class Parent : public Actor {
 public:
  explicit Parent(Journal* journal) : journal_(journal) {}
  void Handle(Adopt adopt) {
    adopt.reply.Set(
        SpawnChild<TestChild>(context(), {.on_failure = adopt.on_failure}, journal_, adopt.number));
  }
  void OnStop(const absl::Status&) override { journal_->ticks = journal_->stopped_children.load(); }

 private:
  Journal* journal_;
};

ActorRef<TestChild> AddChild(const ActorRef<Parent>& parent, size_t number,
                             OnFailure on_failure = OnFailure::kRestart) {
  return parent.Ask(Adopt{on_failure, number, {}}, Soon()).Await(Soon()).value();
}

std::vector<int> Starts(const Journal& journal) {
  return {journal.starts[0], journal.starts[1], journal.starts[2]};
}

std::vector<int> StartsAfterTheMiddleChildFails(uint64_t seed, RestartStrategy strategy) {
  Journal journal;  // outlives the actors
  SimExecutor executor(seed);
  const auto parent = Spawn<Parent>(executor, {.supervision = {.strategy = strategy}}, &journal);
  std::vector<ActorRef<TestChild>> children;
  for (size_t i = 0; i < 3; ++i) children.push_back(AddChild(parent, i));
  EXPECT_TRUE(children[1].Send(FailNow{}).ok());
  executor.RunUntilIdle();
  for (const ActorRef<TestChild>& child : children) EXPECT_TRUE(child.alive());
  EXPECT_TRUE(parent.alive());
  // Each start but the last was ended by a stop.
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(journal.stops[i], journal.starts[i] - 1);
  return Starts(journal);
}

TEST(SupervisorTest, StrategiesRestartTheChildrenTheyName) {
  ForEachSeed(200, [](uint64_t seed) {
    EXPECT_EQ(StartsAfterTheMiddleChildFails(seed, RestartStrategy::kOneForOne),
              (std::vector<int>{1, 2, 1}));
    EXPECT_EQ(StartsAfterTheMiddleChildFails(seed, RestartStrategy::kOneForAll),
              (std::vector<int>{2, 2, 2}));
    EXPECT_EQ(StartsAfterTheMiddleChildFails(seed, RestartStrategy::kRestForOne),
              (std::vector<int>{1, 2, 2}));
  });
}

TEST(SupervisorTest, SeveralFailuresAtOnceLeaveAllChildrenRunning) {
  ForEachSeed(300, [](uint64_t seed) {
    for (RestartStrategy strategy :
         {RestartStrategy::kOneForOne, RestartStrategy::kOneForAll, RestartStrategy::kRestForOne}) {
      Journal journal;  // outlives the actors
      SimExecutor executor(seed);
      const auto parent = Spawn<Parent>(
          executor, {.supervision = {.strategy = strategy, .max_restarts = 10}}, &journal);
      std::vector<ActorRef<TestChild>> children;
      for (size_t i = 0; i < 3; ++i) children.push_back(AddChild(parent, i));
      for (size_t i = 0; i < 3; ++i)
        EXPECT_TRUE(children[executor.Uniform(3)].Send(FailNow{}).ok());
      executor.RunUntilIdle();
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(children[i].Ask(Ask{}, Soon()).Await(Soon()).value(), 1);
        EXPECT_EQ(journal.stops[i], journal.starts[i] - 1);
      }
    }
  });
}

TEST(SupervisorTest, ARestartKeepsTheRefAndTheMailboxUnderEveryExecutor) {
  ForEachExecutor([](Executor& executor) {
    Journal journal;
    const auto parent = Spawn<Parent>(
        executor, {.supervision = {.initial_backoff = absl::Milliseconds(1)}}, &journal);
    const ActorRef<TestChild> child = AddChild(parent, 0);
    EXPECT_EQ(child.Ask(Ask{}, Soon()).Await(Soon()).value(), 1);
    ASSERT_TRUE(child.Send(FailNow{}).ok());
    // Waits in the mailbox; the new incarnation counts from the start.
    EXPECT_EQ(child.Ask(Ask{}, Soon()).Await(Soon()).value(), 1);
    EXPECT_EQ(journal.starts[0], 2);
    EXPECT_TRUE(StopAndWait(parent, Soon()).ok());
    EXPECT_FALSE(child.alive());
  });
}

TEST(SupervisorTest, TooManyRestartsEscalateToTheRoot) {
  ForEachSeed(50, [](uint64_t seed) {
    Journal journal;  // outlives the actors
    SimExecutor executor(seed);
    std::optional<absl::Status> ended;
    const auto parent = Spawn<Parent>(executor,
                                      {.supervision = {.max_restarts = 2},
                                       .on_end = [&](const absl::Status& why) { ended = why; }},
                                      &journal);
    const ActorRef<TestChild> child = AddChild(parent, 0);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(child.Send(FailNow{}).ok());
      executor.RunFor(absl::Seconds(1));
      EXPECT_FALSE(ended.has_value());
    }
    ASSERT_TRUE(child.Send(FailNow{}).ok());
    executor.RunFor(absl::Seconds(1));
    ASSERT_TRUE(ended.has_value());
    EXPECT_EQ(ended->code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(absl::StrContains(ended->message(), "restarted 2 times")) << *ended;
    EXPECT_TRUE(absl::StrContains(ended->message(), "TestChild")) << *ended;
    EXPECT_FALSE(child.alive());
    EXPECT_EQ(executor.actor_count(), 0u);
  });
}

TEST(SupervisorTest, RestartsSpreadOverTimeAreNotTooMany) {
  Journal journal;  // outlives the actors
  SimExecutor executor(1);
  const auto parent = Spawn<Parent>(
      executor, {.supervision = {.max_restarts = 1, .period = absl::Seconds(10)}}, &journal);
  const ActorRef<TestChild> child = AddChild(parent, 0);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(child.Send(FailNow{}).ok());
    executor.RunFor(absl::Seconds(11));
  }
  EXPECT_TRUE(child.alive());
  EXPECT_EQ(journal.starts[0], 6);
}

TEST(SupervisorTest, BackOffDoublesUpToItsMaximum) {
  Journal journal;  // outlives the actors
  SimExecutor executor(1);
  const auto parent = Spawn<Parent>(executor,
                                    {.supervision = {.max_restarts = 4,
                                                     .initial_backoff = absl::Milliseconds(100),
                                                     .max_backoff = absl::Milliseconds(300)}},
                                    &journal);
  const ActorRef<TestChild> child = AddChild(parent, 0);
  executor.RunUntilIdle();
  for (int milliseconds : {100, 200, 300, 300}) {
    const int starts = journal.starts[0];
    ASSERT_TRUE(child.Send(FailNow{}).ok());
    executor.RunFor(absl::Milliseconds(milliseconds - 1));
    EXPECT_EQ(journal.starts[0], starts) << milliseconds;
    executor.RunFor(absl::Milliseconds(1));
    EXPECT_EQ(journal.starts[0], starts + 1) << milliseconds;
  }
}

TEST(SupervisorTest, AnIgnoredFailureEndsOnlyTheChild) {
  ForEachExecutor([](Executor& executor) {
    Journal journal;
    const auto parent = Spawn<Parent>(executor, {}, &journal);
    const ActorRef<TestChild> ignored = AddChild(parent, 0, OnFailure::kIgnore);
    const ActorRef<TestChild> sibling = AddChild(parent, 1);
    Future<Down> down = WhenDown(ignored);
    ASSERT_TRUE(ignored.Send(FailNow{}).ok());
    EXPECT_EQ(std::move(down).Await(Soon())->why.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(sibling.Ask(Ask{}, Soon()).Await(Soon()).value(), 1);
    EXPECT_TRUE(StopAndWait(parent, Soon()).ok());
  });
}

TEST(SupervisorTest, AFailureEscalatesByDefaultAndEndsTheSiblings) {
  ForEachExecutor([](Executor& executor) {
    Journal journal;
    const auto parent = Spawn<Parent>(executor, {}, &journal);
    const ActorRef<TestChild> child = AddChild(parent, 0, OnFailure::kEscalate);
    const ActorRef<TestChild> sibling = AddChild(parent, 1);
    Future<Down> down = WhenDown(parent);
    ASSERT_TRUE(child.Send(FailNow{}).ok());
    const absl::Status why = std::move(down).Await(Soon())->why;
    EXPECT_TRUE(absl::StrContains(why.message(), "TestChild failed")) << why;
    EXPECT_FALSE(sibling.alive());
    EXPECT_EQ(journal.ticks, 2) << "the parent's OnStop comes after those of its children";
  });
}

TEST(SupervisorTest, StopEndsChildrenFirst) {
  ForEachExecutor([](Executor& executor) {
    Journal journal;
    const auto parent = Spawn<Parent>(executor, {}, &journal);
    for (size_t i = 0; i < 3; ++i) AddChild(parent, i);
    EXPECT_TRUE(StopAndWait(parent, Soon()).ok());
    EXPECT_EQ(journal.ticks, 3);
  });
}

TEST(SupervisorTest, AChildThatDoesNotEndIsStoppedByForceWithItsParent) {
  Journal journal;  // outlives the actors
  SimExecutor executor(1);
  const auto parent = Spawn<Parent>(executor, {}, &journal);
  const ActorRef<TestChild> child = AddChild(parent, 0);
  const auto permits = child.Reserve(1);
  EXPECT_EQ(StopAndWait(parent, executor.Now() + absl::Seconds(5)).code(),
            absl::StatusCode::kDeadlineExceeded);
  executor.RunUntilIdle();
  EXPECT_FALSE(child.alive());
  EXPECT_EQ(executor.actor_count(), 0u);
}

TEST(SupervisorTest, TimersOfAnOlderIncarnationAreDropped) {
  ForEachSeed(50, [](uint64_t seed) {
    Journal journal;  // outlives the actors
    SimExecutor executor(seed);
    const auto parent = Spawn<Parent>(executor, {}, &journal);
    const ActorRef<TestChild> child = AddChild(parent, 0);
    ASSERT_TRUE(child.Send(TickLater{}).ok());
    ASSERT_TRUE(child.Send(FailNow{}).ok());
    ASSERT_TRUE(child.Send(TickLater{}).ok());
    executor.RunUntilIdle();
    EXPECT_EQ(journal.ticks, 1);
  });
}

struct Begin {
  Promise<ActorRef<TestChild>> reply;
};
class RemoteParent : public Actor {
 public:
  RemoteParent(Executor* executor, Journal* journal) : executor_(executor), journal_(journal) {}
  void Handle(Begin begin) {
    begin.reply.Set(
        SpawnChild<TestChild>(context(), {.executor = executor_, .on_failure = OnFailure::kRestart},
                              journal_, size_t{0}));
  }

 private:
  Executor* executor_;
  Journal* journal_;
};

TEST(SupervisorTest, AChildMayLiveOnAnotherExecutor) {
  Journal journal;
  ThreadExecutor thread;
  PoolExecutor pool(2);
  const auto parent = Spawn<RemoteParent>(pool, {}, &thread, &journal);
  const auto child = parent.Ask(Begin{}, Soon()).Await(Soon()).value();
  ASSERT_TRUE(child.Send(FailNow{}).ok());
  EXPECT_EQ(child.Ask(Ask{}, Soon()).Await(Soon()).value(), 1);
  EXPECT_TRUE(pool.Shutdown(Soon()).ok());
  EXPECT_FALSE(child.alive());
  EXPECT_EQ(thread.actor_count(), 0u);
}

class Unrepeatable : public Actor {
 public:
  explicit Unrepeatable(std::unique_ptr<int> once) : once_(std::move(once)) {}
  absl::Status Handle(FailNow) { return absl::DataLossError("TestChild failed"); }

 private:
  std::unique_ptr<int> once_;
};
struct AdoptUnrepeatable {
  Promise<ActorRef<Unrepeatable>> reply;
};
class UnrepeatableParent : public Actor {
 public:
  void Handle(AdoptUnrepeatable adopt) {
    adopt.reply.Set(SpawnChild<Unrepeatable>(context(), {.on_failure = OnFailure::kRestart},
                                             std::make_unique<int>(1)));
  }
};

TEST(SupervisorTest, AChildWhoseArgumentsCannotBeCopiedEscalates) {
  SimExecutor executor(1);
  const auto parent = Spawn<UnrepeatableParent>(executor, {});
  const auto child = parent.Ask(AdoptUnrepeatable{}, Soon()).Await(Soon()).value();
  Future<Down> down = WhenDown(parent);
  ASSERT_TRUE(child.Send(FailNow{}).ok());
  const absl::Status why = std::move(down).Await(Soon())->why;
  EXPECT_TRUE(absl::StrContains(why.message(), "cannot be restarted")) << why;
}

}  // namespace
}  // namespace pelton
