// What happens to an actor between its incarnations and at its end.
#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/actor/actor_cell.h"
#include "core/actor/borrow.h"
#include "core/actor/context.h"
#include "core/actor/executor_base.h"
#include "core/actor/executor_fixture.h"
#include "core/actor/monitor.h"
#include "core/actor/spawn.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

struct FailNow {};
struct Ping {
  Promise<int> reply;
};

// Answers with the number of its incarnation.
class Child : public Actor {
 public:
  explicit Child(int* made) : number_(++*made) {}
  absl::Status Handle(FailNow) { return absl::DataLossError("lost it"); }
  void Handle(Ping ping) { ping.reply.Set(number_); }

 private:
  const int number_;
};

template <typename C>
struct Adopt {
  Promise<ActorRef<C>> reply;
};
template <typename C>
class Parent : public Actor {
 public:
  explicit Parent(int* made, Executor* executor = nullptr) : made_(made), executor_(executor) {}
  void Handle(Adopt<C> adopt) {
    adopt.reply.Set(SpawnChild<C>(
        context(), {.executor = executor_, .on_failure = OnFailure::kRestart}, made_));
  }

 private:
  int* made_;
  Executor* executor_;
};
template <typename C>
ActorRef<C> AddChild(const ActorRef<Parent<C>>& parent) {
  return parent.Ask(Adopt<C>{}, Soon()).Await(Soon()).value();
}

class ThrowsWhenMadeAgain : public Child {
 public:
  explicit ThrowsWhenMadeAgain(int* made) : Child(made) {
    if (*made > 1) throw std::runtime_error("no second one");
  }
};

TEST(LifecycleTest, AConstructorThatThrowsOnRestartCountsAsAFailureAndEscalates) {
  ForEachSeed(20, [](uint64_t seed) {
    SimExecutor executor(seed);
    int made = 0;
    const auto parent = Spawn<Parent<ThrowsWhenMadeAgain>>(executor, {}, &made);
    const auto child = AddChild(parent);
    Future<Down> child_down = WhenDown(child);
    Future<Down> parent_down = WhenDown(parent);
    ASSERT_TRUE(child.Send(FailNow{}).ok());
    executor.RunFor(absl::Minutes(1));
    ASSERT_TRUE(child_down.ready());
    ASSERT_TRUE(parent_down.ready());
    const absl::Status why = std::move(parent_down).Take()->why;
    EXPECT_TRUE(absl::StrContains(why.message(), "no second one")) << why;
    EXPECT_EQ(made, 1 + SupervisionSpec{}.max_restarts);
  });
}

TEST(LifecycleTest, AFailureWhileStoppingEndsTheActorInsteadOfRestartingIt) {
  ForEachSeed(20, [](uint64_t seed) {
    SimExecutor executor(seed);
    int made = 0;
    const auto parent = Spawn<Parent<Child>>(executor, {}, &made);
    const auto child = AddChild(parent);
    executor.RunUntilIdle();
    auto permit = child.Reserve(1);
    Future<Down> down = WhenDown(child);
    child.Stop(executor.Now() + absl::Seconds(5));
    executor.RunFor(absl::Milliseconds(1));
    ASSERT_TRUE(permit->Send(FailNow{}).ok());
    executor.RunFor(absl::Seconds(1));
    ASSERT_TRUE(down.ready());
    EXPECT_EQ(std::move(down).Take()->why, absl::DataLossError("lost it"));
    EXPECT_FALSE(child.alive());
    EXPECT_TRUE(parent.alive());
    EXPECT_EQ(made, 1);
  });
}

TEST(LifecycleTest, ASiblingsRestartDoesNotRestartWhoIsStopping) {
  ForEachSeed(50, [](uint64_t seed) {
    SimExecutor executor(seed);
    int made = 0;
    const auto parent = Spawn<Parent<Child>>(
        executor, {.supervision = {.strategy = RestartStrategy::kOneForAll}}, &made);
    const auto stopping = AddChild(parent);
    const auto failing = AddChild(parent);
    executor.RunUntilIdle();
    auto permit = stopping.Reserve(1);
    Future<Down> down = WhenDown(stopping);
    stopping.Stop(executor.Now() + absl::Seconds(5));
    executor.RunFor(absl::Milliseconds(1));
    ASSERT_TRUE(failing.Send(FailNow{}).ok());
    executor.RunFor(absl::Seconds(1));
    EXPECT_EQ(made, 2) << "the sibling waits until the one that stops has ended";
    executor.RunFor(absl::Seconds(5));
    ASSERT_TRUE(down.ready());
    EXPECT_FALSE(stopping.alive());
    executor.RunFor(absl::Seconds(1));
    EXPECT_EQ(failing.Ask(Ping{}, Soon()).Await(Soon()).value(), 3);
  });
}

struct Late {};
// Asks for a message and for a callback in OnStop.
class AsksInOnStop : public Child {
 public:
  explicit AsksInOnStop(int* made) : Child(made) {}
  using Child::Handle;
  void Handle(Late) { ++lates; }
  void OnStop(const absl::Status&) override {
    context().SendAfter(*this, absl::ZeroDuration(), Late{});
    context().SendAfter(*this, absl::Seconds(1), Late{});
    auto [promise, future] = MakePromise<int>();
    context().Then(std::move(future), [this](absl::StatusOr<int>) { lates += *guard_; });
    promise.Set(1);
  }
  static inline int lates = 0;

 private:
  std::unique_ptr<int> guard_ = std::make_unique<int>(1);  // the address sanitizer watches it
};

TEST(LifecycleTest, WhatOnStopAsksForReachesNoIncarnation) {
  ForEachSeed(50, [](uint64_t seed) {
    SimExecutor executor(seed);
    int made = 0;
    AsksInOnStop::lates = 0;
    const auto parent = Spawn<Parent<AsksInOnStop>>(executor, {}, &made);
    const auto child = AddChild(parent);
    ASSERT_TRUE(child.Send(FailNow{}).ok());
    executor.RunFor(absl::Seconds(3));
    EXPECT_EQ(child.Ask(Ping{}, Soon()).Await(Soon()).value(), 2);
    EXPECT_EQ(AsksInOnStop::lates, 0);
  });
}

struct PingLater {
  ActorRef<Child> child;
  absl::Duration delay;
  Promise<int> reply;
};
class Caller : public Actor {
 public:
  void Handle(PingLater later) {
    context().SendAfter(later.child, later.delay, Ping{std::move(later.reply)});
  }
};

TEST(LifecycleTest, ADelayedMessageWaitsForTheNextIncarnation) {
  SimExecutor executor(1);
  int made = 0;
  const auto parent =
      Spawn<Parent<Child>>(executor, {.supervision = {.initial_backoff = absl::Seconds(4)}}, &made);
  const auto child = AddChild(parent);
  const auto caller = Spawn<Caller>(executor, {});
  ASSERT_TRUE(child.Send(FailNow{}).ok());
  executor.RunFor(absl::Seconds(1));
  auto answer = caller.Ask(PingLater{child, absl::Seconds(1), {}}, absl::InfiniteFuture());
  executor.RunFor(absl::Seconds(2));
  EXPECT_FALSE(answer.ready());
  executor.RunFor(absl::Seconds(2));
  ASSERT_TRUE(answer.ready());
  EXPECT_EQ(*std::move(answer).Take(), 2);
}

TEST(LifecycleTest, ADelayedMessageThatNoIncarnationGetsIsDropped) {
  SimExecutor executor(1);
  int made = 0;
  const auto parent =
      Spawn<Parent<Child>>(executor, {.supervision = {.initial_backoff = absl::Seconds(4)}}, &made);
  const auto child = AddChild(parent);
  const auto caller = Spawn<Caller>(executor, {});
  ASSERT_TRUE(child.Send(FailNow{}).ok());
  auto answer = caller.Ask(PingLater{child, absl::Seconds(1), {}}, absl::InfiniteFuture());
  executor.RunFor(absl::Seconds(2));
  child.Stop(executor.Now());
  executor.RunFor(absl::Seconds(1));
  ASSERT_TRUE(answer.ready());
  EXPECT_EQ(std::move(answer).Take().status().code(), absl::StatusCode::kAborted);
}

class FailingParent : public Parent<Child> {
 public:
  explicit FailingParent(int* made) : Parent<Child>(made) {}
  using Parent<Child>::Handle;
  absl::Status Handle(FailNow) { return absl::DataLossError("lost it"); }
};

TEST(LifecycleTest, AnActorThatHasFailedAndWaitsForItsChildrenIsNotLent) {
  SimExecutor executor(1);
  int made = 0;
  const auto parent = Spawn<FailingParent>(executor, {}, &made);
  const auto child = parent.Ask(Adopt<Child>{}, Soon()).Await(Soon()).value();
  auto permit = child.Reserve(1);  // keeps the child, and with it the parent
  ASSERT_TRUE(TryBorrow(parent).has_value());
  ASSERT_TRUE(parent.Send(FailNow{}).ok());
  executor.RunFor(absl::Seconds(1));
  ASSERT_TRUE(parent.alive());
  EXPECT_FALSE(TryBorrow(parent).has_value());
  executor.RunFor(absl::Minutes(1));
  EXPECT_FALSE(parent.alive());
}

class Counted final : public internal::Watcher {
 public:
  explicit Counted(int* count, bool wanted) : count_(*count), wanted_(wanted) { ++count_; }
  ~Counted() override { --count_; }
  void Tell(Down) override {}
  bool wanted() const override { return wanted_; }

 private:
  int& count_;
  const bool wanted_;
};

TEST(LifecycleTest, WatchersThatNobodyWantsAreDropped) {
  int count = 0;
  int made = 0;
  {
    SimExecutor executor(1);
    const auto child = Spawn<Child>(executor, {}, &made);
    for (int i = 0; i < 10'000; ++i) {
      internal::WatchCell(*child.cell(),
                          std::make_unique<Counted>(&count, /*wanted=*/i % 100 == 0));
      executor.RunUntilIdle();
    }
    EXPECT_GE(count, 100);
    EXPECT_LE(count, 200 + 16);
  }
  EXPECT_EQ(count, 0);
}

struct Begin {
  ActorRef<Child> whom;
};
struct TakeBack {};
class Onlooker : public Actor {
 public:
  explicit Onlooker(int* downs) : downs_(*downs) {}
  void Handle(Begin begin) { watch_ = context().Watch(*this, begin.whom); }
  void Handle(TakeBack) { watch_.Cancel(); }
  absl::Status Handle(FailNow) { return absl::DataLossError("lost it"); }
  void Handle(Down) { ++downs_; }

 private:
  int& downs_;
  Watch watch_;
};

TEST(LifecycleTest, AWatchThatIsTakenBackTellsNothing) {
  for (const bool takes_back : {false, true}) {
    SimExecutor executor(1);
    int made = 0;
    int downs = 0;
    const auto child = Spawn<Child>(executor, {}, &made);
    const auto onlooker = Spawn<Onlooker>(executor, {}, &downs);
    ASSERT_TRUE(onlooker.Send(Begin{child}).ok());
    executor.RunUntilIdle();
    if (takes_back) {
      ASSERT_TRUE(onlooker.Send(TakeBack{}).ok());
    }
    executor.RunUntilIdle();
    child.Stop(Soon());
    executor.RunFor(absl::Minutes(1));
    EXPECT_EQ(downs, takes_back ? 0 : 1);
  }
}

TEST(LifecycleTest, AWatchIsWantedUntilItIsTakenBackOrItsIncarnationEnds) {
  SimExecutor executor(1);
  int downs = 0;
  const auto boss = Spawn<Parent<Child>>(executor, {}, &downs);
  const auto onlooker = SpawnUnder<Onlooker>(boss, {.on_failure = OnFailure::kRestart}, &downs);
  executor.RunUntilIdle();
  const auto is_over = std::make_shared<std::atomic<bool>>(false);
  const internal::ActorWatcher<Onlooker> first(onlooker, is_over);
  EXPECT_TRUE(first.wanted());
  ASSERT_TRUE(onlooker.Send(FailNow{}).ok());
  executor.RunFor(absl::Minutes(1));
  EXPECT_FALSE(first.wanted()) << "its incarnation has ended";
  const internal::ActorWatcher<Onlooker> second(onlooker, is_over);
  EXPECT_TRUE(second.wanted());
  *is_over = true;
  EXPECT_FALSE(second.wanted());
}

TEST(LifecycleTest, AFutureOfAnEndIsWantedWhileItLives) {
  auto [promise, future] = MakePromise<Down>();
  internal::FutureWatcher watcher(std::move(promise));
  EXPECT_TRUE(watcher.wanted());
  { const Future<Down> dropped = std::move(future); }
  EXPECT_FALSE(watcher.wanted());
}

TEST(LifecycleTest, ShutdownStopsAChildWhoseParentLivesElsewhere) {
  int made = 0;
  SimExecutor parents(1);
  SimExecutor children(2);
  const auto parent = Spawn<Parent<Child>>(parents, {}, &made, &children);
  auto asked = parent.Ask(Adopt<Child>{}, absl::InfiniteFuture());
  parents.RunUntilIdle();
  const auto child = *std::move(asked).Take();
  const absl::Time begin = children.Now();
  EXPECT_TRUE(children.Shutdown(begin + absl::Seconds(10)).ok());
  EXPECT_EQ(children.Now(), begin);
  EXPECT_FALSE(child.alive());
  parents.RunUntilIdle();
  EXPECT_TRUE(parent.alive());
}

// Takes note of its children's failures.
class Judge : public Actor {
 public:
  explicit Judge(std::vector<absl::Status>* heard) : heard_(*heard) {}
  absl::Status OnChildFailed(const Down& child) override {
    heard_.push_back(child.why);
    return absl::OkStatus();
  }

 private:
  std::vector<absl::Status>& heard_;
};

SpawnOptions Owned() { return {.ends_with_parent = false}; }

TEST(LifecycleTest, TheParentOfAChildThatItsOwnerEndsHearsOfItsFailureAlone) {
  ForEachSeed(50, [](uint64_t seed) {
    SimExecutor executor(seed);
    std::vector<absl::Status> heard;
    int made = 0;
    const auto judge = Spawn<Judge>(executor, {}, &heard);
    const auto stopped = SpawnUnder<Child>(judge, Owned(), &made);
    const auto failing = SpawnUnder<Child>(judge, Owned(), &made);
    EXPECT_TRUE(StopAndWait(stopped, Soon()).ok());
    ASSERT_TRUE(failing.Send(FailNow{}).ok());
    executor.RunUntilIdle();
    EXPECT_EQ(heard, std::vector<absl::Status>{absl::DataLossError("lost it")});
    EXPECT_FALSE(failing.alive());
    EXPECT_TRUE(judge.alive());
  });
}

TEST(LifecycleTest, AChildThatItsOwnerEndsOutlivesItsParent) {
  ForEachSeed(50, [](uint64_t seed) {
    SimExecutor executor(seed);
    std::vector<absl::Status> heard;
    int made = 0;
    const auto judge = Spawn<Judge>(executor, {}, &heard);
    const auto early = SpawnUnder<Child>(judge, Owned(), &made);
    const auto permit = early.Reserve(1);  // keeps the child, and not the parent
    EXPECT_TRUE(StopAndWait(judge, executor.Now()).ok());
    const auto late = SpawnUnder<Child>(judge, Owned(), &made);
    executor.RunUntilIdle();
    for (const auto& child : {early, late}) {
      EXPECT_TRUE(child.alive());
      ASSERT_TRUE(child.Send(FailNow{}).ok());
    }
    executor.RunUntilIdle();
    EXPECT_FALSE(early.alive());
    EXPECT_FALSE(late.alive());
    EXPECT_TRUE(heard.empty());
  });
}

TEST(LifecycleTest, ShutdownStopsAChildThatItsOwnerEnds) {
  SimExecutor executor(1);
  std::vector<absl::Status> heard;
  int made = 0;
  const auto judge = Spawn<Judge>(executor, {}, &heard);
  const auto child = SpawnUnder<Child>(judge, Owned(), &made);
  EXPECT_TRUE(executor.Shutdown(Soon()).ok());
  EXPECT_FALSE(child.alive());
}

class NeverStarted : public Actor {
 public:
  explicit NeverStarted(int* stops) : stops_(*stops) {}
  void OnStop(const absl::Status&) override { ++stops_; }

 private:
  int& stops_;
};

TEST(LifecycleTest, WhatNeverStartedIsNotStopped) {
  int stops = 0;
  {
    SimExecutor executor(1);
    const auto actor = Spawn<NeverStarted>(executor, {}, &stops);
    actor.cell()->Die(absl::CancelledError("its executor was destroyed"));
    EXPECT_FALSE(actor.alive());
    executor.RunUntilIdle();
  }
  EXPECT_EQ(stops, 0);
}

TEST(LifecycleTest, AnEndWaitsForThoseThatAreInside) {
  internal::Passages passages;
  std::atomic<bool> ended{false};
  std::thread end;
  {
    const internal::Passage first(passages);
    const internal::Passage second(passages);
    end = std::thread([&] {
      passages.AwaitNone();
      ended = true;
    });
    for (int i = 0; i < 100; ++i) {
      std::this_thread::yield();
      ASSERT_FALSE(ended);
    }
  }
  end.join();
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace pelton
